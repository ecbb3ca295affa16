// The job's directory on a real disk: output_file, job_dir, job_writer, job_log, short_attempts, report_file.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/program.h"
#include "base/unique_fd.h"
#include "launcher/output/job_dir.h"
#include "launcher/output/job_writer.h"
#include "launcher/output/output_file.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/unit/launcher/output/output_fixtures.h"

using namespace ddp;
using namespace ddp::launcher;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::content;
using test::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

/// Limits the size of every file of this process: a full disk without root.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileLimit() { lift(); }
  void lift() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

/// Runs `task` on a thread that sees one more mount. Returns false if this process may not mount.
template <class Task>
bool with_mount(const std::string& source, const std::string& target, const char* type, unsigned long flags,
                const char* data, Task task) {
  return std::async(std::launch::async,
                    [&] {
                      const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                                           ::mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) == 0 &&
                                           ::mount(source.c_str(), target.c_str(), type, flags, data) == 0;
                      if (mounted) task();
                      return mounted;
                    })
      .get();
}

JobSpec spec_in(const TemporaryDirectory& directory) {
  JobSpec spec;
  spec.job_id = "run7";
  spec.job_dir = directory.path / "job";
  return spec;
}

JobDir made(const JobSpec& spec) {
  auto job = JobDir::create(spec);
  REQUIRE(job.has_value());
  return std::move(*job);
}

/// Returns why the directories cannot be used, which is a mistake of the user; empty: they can.
std::string refusal_of(const JobSpec& spec) {
  const auto job = JobDir::create(spec);
  if (job) return "";
  CHECK(job.error().code == ErrorCode::kUsage);
  return job.error().text;
}

/// A writer, with the words of its warnings and how often it has drained.
struct WriterBench {
  explicit WriterBench(JobDir job, JobWriter::FirstTask first = {})
      : writer(JobWriter::start(
            loop.get_executor(), std::move(job), [this](const std::string& words) { said.push_back(words); },
            [this] { ++drained; }, std::move(first))) {}
  asio::io_context loop;
  std::vector<std::string> said;
  int drained = 0;
  std::shared_ptr<JobWriter> writer;
};

constexpr JobDir::Time kStart{};

bool disk_has_locks = true;

}  // namespace

/// Replaces the system's function in this program.
extern "C" int flock(int fd, int operation) noexcept {
  if (disk_has_locks) return static_cast<int>(::syscall(SYS_flock, fd, operation));
  errno = ENOLCK;
  return -1;
}

TEST_CASE("a file and its directories are created with its first byte") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "a/b/out";
  OutputFile file(path, {});
  CHECK_FALSE(fs::exists(directory.path / "a"));
  CHECK(file.write("one\n").error.sys == 0);
  CHECK(file.write("two").error.sys == 0);
  file.close();
  CHECK(file.write("\nthree\n").error.sys == 0);
  CHECK(content(path) == "one\ntwo\nthree\n");
  CHECK(file.take_gaps().empty());
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("parts end at line ends, and together hold everything that was written") {
  std::mt19937 random(7);
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    const TemporaryDirectory directory;
    const std::string path = directory.path / "out";
    OutputFile file(path, {4096, 0});
    std::string all;
    for (int line = 0; line < 200; ++line) {
      all += std::string(random() % (round % 3 == 0 ? 6000 : 90), static_cast<char>('a' + line % 26)) + '\n';
    }
    bool is_written = true;
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % 9000, all.size() - at);
      is_written = file.write(all.substr(at, size)).error.sys == 0 && is_written;
      at += size;
    }
    CHECK(is_written);
    std::string read = content(path);
    for (int part = 1; fs::exists(path + '.' + std::to_string(part)); ++part) {
      CHECK(read.back() == '\n');
      const std::string text = content(path + '.' + std::to_string(part));
      CHECK(text.size() < 4096 + 6001);
      read += text;
    }
    CHECK(read == all);
  }
}

TEST_CASE("a line longer than a part stays whole") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "out";
  OutputFile file(path, {4096, 0});
  const std::string giant(10'000, 'x');
  for (const char* piece : {"first\n", giant.c_str(), giant.c_str(), "\nnext\n"})
    CHECK(file.write(piece).error.sys == 0);
  CHECK(content(path) == "first\n");
  CHECK(content(path + ".1") == giant + giant + "\n");
  CHECK(content(path + ".2") == "next\n");
}

TEST_CASE("a part that is exactly full takes the end of its open line") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "out";
  OutputFile file(path, {10, 0});
  CHECK(file.write("ab\ncdefghi").error.sys == 0);
  CHECK(file.write("\nnext\n").error.sys == 0);
  CHECK(content(path) == "ab\ncdefghi\n");
  CHECK(content(path + ".1") == "next\n");
}

TEST_CASE("bytes of a part that cannot be created are missing at its beginning") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "out";
  OutputFile file(path, {10, 0});
  fs::create_directory(path + ".1");
  CHECK(file.write("12345678\n").error.sys == 0);
  CHECK(file.write("lost\n").error.sys == EISDIR);
  const auto gaps = file.take_gaps();
  REQUIRE(gaps.size() == 1);
  CHECK(gaps[0].path == path + ".1");
  CHECK(gaps[0].offset == 0);
  CHECK(gaps[0].bytes == 5);
}

TEST_CASE("only the newest parts stay when a number is given") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "out";
  OutputFile file(path, {4096, 2});
  const std::string line = std::string(4000, 'x') + '\n';
  for (int i = 0; i < 5; ++i)
    CHECK(file.write(std::to_string(i) + line).error.sys == 0);
  CHECK_FALSE(fs::exists(path));
  CHECK_FALSE(fs::exists(path + ".2"));
  CHECK(content(path + ".3") == "3" + line);
  CHECK(content(path + ".4") == "4" + line);
}

TEST_CASE("bytes that the disk refuses are counted, and the file continues when there is space") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "out";
  OutputFile file(path, {});
  FileLimit limit(10);
  CHECK(file.write("0123456789ABC").error.sys == EFBIG);
  CHECK(file.write("lost").error.sys == EFBIG);
  limit.lift();
  CHECK(file.write("back\n").error.sys == 0);
  CHECK(content(path) == "0123456789back\n");
  const auto gaps = file.take_gaps();
  REQUIRE(gaps.size() == 1);
  CHECK(gaps[0].path == path);
  CHECK(gaps[0].offset == 10);
  CHECK(gaps[0].bytes == 7);
  CHECK(file.take_gaps().empty());
}

TEST_CASE("the rest of a line whose beginning was refused stays in the part") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "out";
  OutputFile file(path, {10, 0});
  CHECK(file.write("line\n").error.sys == 0);
  {
    const FileLimit limit(5);
    CHECK(file.write("begin").error.sys == EFBIG);
  }
  CHECK(file.write(" and ends\n").error.sys == 0);
  CHECK(file.write("next\n").error.sys == 0);
  CHECK(content(path) == "line\n and ends\n");
  CHECK(content(path + ".1") == "next\n");
}

TEST_CASE("a deleted file or directory is created again") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "job/attempt_0/out";
  OutputFile file(path, {});
  CHECK_FALSE(file.write("gone\n").vanished);
  fs::remove_all(directory.path / "job");
  const auto outcome = file.write("new\n");
  CHECK(outcome.error.sys == 0);
  CHECK(outcome.vanished);
  CHECK(content(path) == "new\n");
  file.close();
  fs::remove(path);
  CHECK(file.write("newer\n").vanished);
  CHECK(content(path) == "newer\n");
  CHECK_FALSE(file.write("more\n").vanished);
}

TEST_CASE("a deleted file that cannot be created again is reported once") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "out";
  OutputFile file(path, {});
  CHECK_FALSE(file.write("gone\n").vanished);
  fs::remove(path);
  fs::create_symlink("none", path);  // so that it cannot be created again
  CHECK(file.write("lost\n").vanished);
  CHECK_FALSE(file.write("lost\n").vanished);
}

TEST_CASE("the part that replaces a deleted one is empty") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "out";
  OutputFile file(path, {10, 0});
  CHECK(file.write("12345678\n").error.sys == 0);
  fs::remove(path);
  CHECK(file.write("abcdefg\n").vanished);
  CHECK(content(path) == "abcdefg\n");
}

TEST_CASE("a job's directory is used once") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  CHECK(job.warning().empty());
  CHECK(job.note().empty());
  CHECK(fs::status(spec.job_dir + "/run.lock").permissions() ==
        (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(job.write({0, 3, 1, 2}, "x\n", kStart).empty());
  CHECK(content(spec.job_dir + "/attempt_0/rank_00003.stderr") == "x\n");
  spec.job_dir = directory.path / "job/attempt_0/rank_00003.stderr/x";
  const std::string in_the_way = directory.path / "job/attempt_0/rank_00003.stderr";
  CHECK(refusal_of(spec) == "the job directory " + spec.job_dir + ": " + in_the_way +
                                " is not a directory; choose another with --job-dir");
  spec.job_dir = directory.path / "other";
  spec.output.log_dir = in_the_way + "/run7";
  CHECK(refusal_of(spec) == "the log directory " + in_the_way + "/run7: " + in_the_way +
                                " is not a directory; choose another with --log-dir");
}

TEST_CASE("the files go to the fallback when the job's directory cannot be created") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  spec.job_dir = "/dev/null/none/job";
  spec.fallback_job_dir = directory.path / "own/jobs/run7";
  JobDir job = made(spec);
  CHECK(job.note() == "/dev/null is not a directory; the job's files are in " + spec.fallback_job_dir);
  CHECK(job.write({0, 0, 0, 1}, "x\n", kStart).empty());
  CHECK(content(spec.fallback_job_dir + "/attempt_0/rank_00000.stdout") == "x\n");
}

TEST_CASE("an existing directory is used only when it is writable by this user alone") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  const std::string name = "the job directory " + spec.job_dir;
  fs::create_directory(directory.path / "target");
  fs::create_directory_symlink(directory.path / "target", spec.job_dir);
  CHECK(refusal_of(spec) == name + " is a symbolic link; choose another with --job-dir");
  fs::remove(directory.path / "target");  // the link points to nothing
  CHECK(refusal_of(spec) == name + " is a symbolic link; choose another with --job-dir");
  fs::remove(spec.job_dir);
  fs::create_directory(spec.job_dir);
  REQUIRE(::chmod(spec.job_dir.c_str(), 0777) == 0);
  CHECK(refusal_of(spec) == name + " is writable by everybody; choose another with --job-dir");
  REQUIRE(::chmod(spec.job_dir.c_str(), 0775) == 0);
  CHECK(refusal_of(spec) == "");
  fs::create_symlink("/nonexistent", spec.job_dir + "/attempt_0");
  CHECK(refusal_of(spec) == name + " holds an earlier run; choose another with --job-dir");
  fs::remove(spec.job_dir + "/attempt_0");
}

TEST_CASE("a directory belongs to one run, while it runs and afterwards") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  spec.output.log_dir = directory.path / "logs/run7";
  JobSpec same_logs = spec;
  same_logs.job_dir = directory.path / "other";
  const std::string pid = std::to_string(::getpid());
  {
    const auto live = JobDir::create(spec);
    REQUIRE(live.has_value());
    CHECK(refusal_of(spec) == "the job directory " + spec.job_dir + " is in use by ddplaunch with pid " +
                                  pid + "; wait until that run has ended, or choose another with --job-dir");
    CHECK(refusal_of(same_logs) == "the log directory " + spec.output.log_dir +
                                       " is in use by ddplaunch with pid " + pid +
                                       "; wait until that run has ended, or choose another with --log-dir or "
                                       "--job-id");
    std::ofstream(spec.job_dir + "/run.lock") << "4711 gpu09\n";
    CHECK(refusal_of(spec) == "the job directory " + spec.job_dir +
                                  " is in use by ddplaunch with pid 4711 on gpu09"
                                  "; wait until that run has ended, or choose another with --job-dir");
  }
  CHECK(refusal_of(spec) == "");  // the run is over, however it ended, and has left nothing
  for (const char* file : {"report.json", "ddplaunch.log", "attempt_0"}) {
    std::ofstream(spec.job_dir + '/' + file) << "x";
    CHECK(refusal_of(spec) == "the job directory " + spec.job_dir +
                                  " holds an earlier run; choose another with "
                                  "--job-dir");
    fs::remove(spec.job_dir + '/' + file);
  }
}

TEST_CASE("a directory that cannot be locked is used, with a warning") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  fs::create_directory(spec.job_dir);
  fs::create_symlink("elsewhere", spec.job_dir + "/run.lock");
  JobDir job = made(spec);
  CHECK(job.warning() == "warning: the job directory " + spec.job_dir +
                             " cannot be locked: Too many levels of symbolic links; nothing prevents a "
                             "second run from using it at the same time");
  fs::remove(spec.job_dir + "/run.lock");
  disk_has_locks = false;
  const auto unlocked = JobDir::create(spec);
  disk_has_locks = true;
  REQUIRE(unlocked.has_value());
  CHECK(unlocked->warning() ==
        "warning: the job directory " + spec.job_dir +
            " cannot be locked: No locks available; nothing prevents a second run from "
            "using it at the same time");
}

TEST_CASE("a directory of another user is refused", "[root]") {
  if (::geteuid() != 0) SKIP_TEST("only root can change the owner of a directory");
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  fs::create_directory(spec.job_dir);
  REQUIRE(::chown(spec.job_dir.c_str(), 61234, 61234) == 0);
  CHECK(refusal_of(spec) ==
        "the job directory " + spec.job_dir +
            " belongs to uid 61234 and not to you (uid 0); choose another with --job-dir");
}

TEST_CASE("directories are created below a shared directory of this user, and behind this user's links") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  const std::string open = directory.path / "open";
  fs::create_directory(open);
  REQUIRE(::chmod(open.c_str(), 0777) == 0);
  spec.output.log_dir = open + "/new/run7";
  spec.job_dir = open + "/new/job";
  CHECK(JobDir::create(spec).has_value());
  // A link that belongs to the user is followed.
  fs::create_directory_symlink(open, directory.path / "link");
  spec.output.log_dir = directory.path / "link/run7";
  CHECK(JobDir::create(spec).has_value());
}

TEST_CASE("no file is written through a link") {
  const TemporaryDirectory directory;
  fs::create_symlink(directory.path / "target", directory.path / "out");
  OutputFile file(directory.path / "out", {});
  CHECK(file.write("one\n").error.sys == ELOOP);
  CHECK_FALSE(fs::exists(directory.path / "target"));
}

TEST_CASE("--log-dir gets copies of the streams that --tee and --redirects name") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  spec.output.log_dir = directory.path / "logs/run7";
  spec.output.tee.by_local = {{0, 3}};
  spec.output.redirects.by_local = {{1, 2}};
  JobDir job = made(spec);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    for (const std::uint8_t stream : {1, 2})
      CHECK(job.write({1, rank, static_cast<int>(rank % 2), stream}, std::to_string(rank) + "\n", kStart)
                .empty());
  }
  const fs::path copies = directory.path / "logs/run7/attempt_1";
  CHECK(content(copies / "0/stdout.log") == "0\n");
  CHECK(content(copies / "0/stderr.log") == "0\n");
  CHECK(content(copies / "2/stdout.log") == "2\n");
  CHECK(content(copies / "3/stderr.log") == "3\n");
  CHECK_FALSE(fs::exists(copies / "3/stdout.log"));
  for (int rank = 0; rank < 4; ++rank)
    CHECK(fs::exists(spec.job_dir + "/attempt_1/rank_0000" + std::to_string(rank) + ".stdout"));
}

TEST_CASE("--log-dir alone gets all streams") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  spec.output.log_dir = directory.path / "logs/run7";
  JobDir job = made(spec);
  CHECK(job.write({0, 5, 1, 2}, "e\n", kStart).empty());
  CHECK(content(directory.path / "logs/run7/attempt_0/5/stderr.log") == "e\n");

  spec.job_dir = spec.output.log_dir;
  CHECK(JobDir::create(spec).error().code == ErrorCode::kUsage);
}

TEST_CASE("a full disk is reported once, and the missing bytes when there is space") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  const OutputKey one{0, 0, 0, 1};
  const OutputKey two{0, 1, 1, 2};
  const std::string file = spec.job_dir + "/attempt_0/rank_00000.stdout";
  CHECK(job.write(one, "12345678", kStart).empty());
  FileLimit limit(10);
  const auto words = job.write(one, "9abc", kStart);
  REQUIRE(words.size() == 1);
  CHECK(words[0] == "warning: no space left for the job's files: " + file +
                        ": File too large; the job continues; its output is not saved until this is fixed");
  CHECK(job.write(two, "0123456789abc", kStart + milliseconds(100)).empty());
  limit.lift();
  // One successful write does not end the warning.
  CHECK(job.write(one, "A", kStart + milliseconds(200)).empty());
  CHECK(job.write(one, "B", kStart + milliseconds(2099)).empty());
  const auto well = job.write(one, "C", kStart + milliseconds(2100));
  REQUIRE(well.size() == 1);
  CHECK(well[0] == "warning: the job's files are written again; missing: 2 bytes of " + file +
                       ", 3 bytes of " + spec.job_dir + "/attempt_0/rank_00001.stderr");
  CHECK(content(file) == "123456789aABC");
  CHECK(content(spec.job_dir + "/gaps.txt") ==
        file + ": 2 bytes missing at offset 10\n" + spec.job_dir +
            "/attempt_0/rank_00001.stderr: 3 bytes missing at offset 10\n");
  CHECK(job.finish().empty());
}

TEST_CASE("a record of TensorBoard's file is written whole or not at all") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  spec.output.tensorboard = directory.path / "board/events.out.tfevents.1";
  JobDir job = made(spec);
  const OutputKey board{0, 0, 0, kTensorBoard};
  CHECK(job.write(board, "12345678", kStart).empty());
  FileLimit limit(10);
  const auto words = job.write(board, "9abc", kStart);
  REQUIRE(words.size() == 1);
  CHECK(words[0] == "warning: no space left for the file of --tensorboard: " + spec.output.tensorboard +
                        ": File too large; the job continues; its steps and loss are not saved there until "
                        "this is fixed");
  CHECK(content(spec.output.tensorboard) == "12345678");
  // The job's own files have a trouble of their own, perhaps of another disk.
  const OutputKey one{0, 0, 0, 1};
  CHECK(job.write(one, "0", kStart + milliseconds(2100)).empty());
  CHECK(job.write(one, "123456789abc", kStart + milliseconds(2100)).size() == 1);
  limit.lift();
  const auto well = job.write(board, "ABCD", kStart + milliseconds(2100));
  CHECK(well ==
        std::vector<std::string>{"warning: the file of --tensorboard is written again; missing: 3 bytes of " +
                                 job.file(0, 0, 1) + ", 4 bytes of " + spec.output.tensorboard});
  CHECK(content(spec.output.tensorboard) == "12345678ABCD");
}

TEST_CASE("a disk without room is reported as full", "[root]") {
  const TemporaryDirectory directory;
  const bool mounted = with_mount("none", directory.path, "tmpfs", 0, "size=8k", [&directory] {
    JobDir job = made(spec_in(directory));  // its lock takes 4 KiB
    const auto words = job.write({0, 0, 0, 1}, std::string(5000, 'x'), kStart);
    CHECK(words ==
          std::vector<std::string>{"warning: no space left for the job's files: " + job.file(0, 0, 1) +
                                   ": No space left on device; the job continues; its output is not "
                                   "saved until this is fixed"});
  });
  if (!mounted) SKIP_TEST("only root can mount");
}

TEST_CASE("missing bytes are reported at the end when the disk stayed full") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  {
    const FileLimit limit(10);
    for (std::uint32_t rank = 0; rank < 6; ++rank)
      CHECK(job.write({0, rank, 0, 1}, "0123456789abc", kStart).size() == (rank == 0 ? 1 : 0));
  }
  const std::string base = " of " + spec.job_dir + "/attempt_0/rank_0000";
  CHECK(job.finish() == "warning: the job's files are incomplete; missing: 3 bytes" + base +
                            "0.stdout, 3 bytes" + base + "1.stdout, 3 bytes" + base + "2.stdout, 3 bytes" +
                            base + "3.stdout, and 6 bytes of 2 other files");
  CHECK(job.finish().empty());
}

TEST_CASE("more files than descriptors can be written") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{256, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  JobDir job = made(spec);
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t rank = 0; rank < 300; ++rank)
      CHECK(job.write({0, rank, 0, 1}, std::to_string(round), kStart).empty());
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  for (std::uint32_t rank = 0; rank < 300; ++rank)
    CHECK(content(job.file(0, rank, 1)) == "012");
}

TEST_CASE("the writer keeps the order of each stream, and drains") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  std::promise<void> full;  // until then the disk is slow
  WriterBench bench(std::move(job), [wait = full.get_future().share()] { wait.wait(); });
  const auto& writer = bench.writer;
  std::map<OutputKey, std::string> sent;
  std::mt19937 random(3);
  bool was_full = false;
  for (int i = 0; i < 2'000; ++i) {
    const OutputKey key{static_cast<std::uint32_t>(random() % 2), static_cast<std::uint32_t>(random() % 8), 0,
                        static_cast<std::uint8_t>(1 + random() % 2)};
    const std::string bytes(random() % 15'000, static_cast<char>('a' + i % 26));
    sent[key] += bytes;
    if (i % 3 == 0) {  // some writes without a copy
      const std::shared_ptr<char[]> memory(new char[bytes.size() + 1]);
      bytes.copy(memory.get(), bytes.size());
      writer->append(key, {memory.get(), bytes.size()}, memory);
    } else {
      writer->append(key, bytes);
    }
    if (!was_full && writer->full()) {
      was_full = true;
      full.set_value();
    }
  }
  REQUIRE(was_full);
  const auto settled = writer->finish(
      [](const std::string&) { return std::vector<std::string>{"the last task's"}; }, seconds(30));
  REQUIRE(settled.has_value());
  CHECK(*settled == std::vector<std::string>{"the last task's"});
  for (const auto& [key, bytes] : sent)
    CHECK(content(writer->file(key.attempt, key.rank, key.stream)) == bytes);
  writer->append({0, 0, 0, 1}, "tail");
  writer->close(seconds(30));
  CHECK(content(writer->file(0, 0, 1)) == sent[{0, 0, 0, 1}] + "tail");
  bench.loop.run();
  CHECK(bench.said.empty());
  CHECK(bench.drained > 0);
}

TEST_CASE("the writer reports the missing bytes, also when the job ends at once") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  WriterBench bench(std::move(job));
  const auto& writer = bench.writer;
  const FileLimit limit(10);
  writer->append({0, 0, 0, 1}, "0123456789abc");
  const auto settled =
      writer->finish([](const std::string&) { return std::vector<std::string>(); }, seconds(30));
  REQUIRE((settled && settled->size() == 1));
  CHECK(settled->front().starts_with("warning: the job's files are incomplete; missing: 3 bytes of "));
  writer->close(seconds(30));
  bench.loop.run();
  REQUIRE(bench.said.size() == 1);
  CHECK(bench.said[0].starts_with("warning: no space left for the job's files: "));
}

TEST_CASE("the writer is abandoned when its disk hangs") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  const std::string file = job.file(0, 0, 1);
  REQUIRE(::mkdir(std::filesystem::path(file).parent_path().c_str(), 0700) == 0);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);  // open blocks until a reader comes
  std::atomic<bool> called = false;
  const JobWriter::LastTask last = [&called](const std::string&) {
    called = true;
    return std::vector<std::string>();
  };
  std::weak_ptr<JobWriter> left;
  {
    asio::io_context loop;
    const auto writer = JobWriter::start(
        loop.get_executor(), std::move(job), [](const std::string&) {}, [] {});
    left = writer;
    writer->append({0, 0, 0, 1}, "0123456789");
    CHECK_FALSE(writer->finish(last, milliseconds(20)).has_value());
    CHECK(writer->backlog() == 10);
    writer->close(milliseconds(20));
  }
  CHECK_FALSE(called);
  // The disk responds again.
  const int reader = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  while (!left.expired())
    std::this_thread::sleep_for(milliseconds(1));
  CHECK(called);
  ::close(reader);
}

TEST_CASE("a hanging disk costs bounded memory, and the dropped bytes are counted") {
  const TemporaryDirectory directory;
  const JobSpec spec = spec_in(directory);
  JobDir job = made(spec);
  const std::string path = job.file(0, 0, 1);
  fs::create_directories(fs::path(path).parent_path());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);  // open blocks until a reader comes
  WriterBench bench(std::move(job));
  const auto& writer = bench.writer;
  constexpr std::size_t kPiece = 1u << 20;
  const std::shared_ptr<char[]> memory(new char[kPiece]());
  std::size_t sent = 0;
  for (; sent < JobWriter::kMost + 10 * kPiece; sent += kPiece)
    writer->append({0, 0, 0, 1}, {memory.get(), kPiece}, memory);
  std::size_t read = 0;
  std::thread reader([&] {
    const UniqueFd fifo(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string bytes(kPiece, '\0');
    while (read < JobWriter::kMost + 10) {
      const ssize_t size = ::read(fifo.get(), bytes.data(), bytes.size());
      if (size <= 0) break;
      read += static_cast<std::size_t>(size);
    }
  });
  const auto settled =
      writer->finish([](const std::string&) { return std::vector<std::string>(); }, seconds(30));
  writer->append({0, 0, 0, 1}, "it goes on");
  writer->close(seconds(30));
  reader.join();
  REQUIRE((settled && settled->size() == 1));
  CHECK(settled->front() == "warning: the job's files are incomplete; missing: " +
                                std::to_string(10 * kPiece) + " bytes of " + path);
  CHECK(read == JobWriter::kMost + 10);
  CHECK(content(spec.job_dir + "/gaps.txt") == path + ": " + std::to_string(10 * kPiece) +
                                                   " bytes missing at offset " +
                                                   std::to_string(JobWriter::kMost) + "\n");
  bench.loop.run();
  CHECK(bench.said.empty());
}

TEST_CASE("the job's own files are bounded to the current and the previous half") {
  const TemporaryDirectory directory;
  JobDir job = made(spec_in(directory));
  for (const auto& [stream, half] :
       {std::pair(kJournal, 16u), std::pair(kJobLog, 64u), std::pair(kHooks, 16u), std::pair(kTimes, 16u)}) {
    const fs::path path = job.file(0, 0, stream);
    const std::string previous = path.string() + ".1";
    CAPTURE(path.string());
    fs::create_directories(path.parent_path());
    std::ofstream(path).close();
    fs::resize_file(path, (half << 20) - 6);  // a hole, which costs no writes
    std::ofstream(previous) << "the first part\n";
    CHECK(job.write({0, 0, 0, stream}, "room\n\n", kStart).empty());
    CHECK(fs::file_size(path) == half << 20);
    CHECK(content(previous) == "the first part\n");
    CHECK(job.write({0, 0, 0, stream}, "the third part\n", kStart).empty());
    CHECK(content(path) == "the third part\n");
    CHECK(fs::file_size(previous) == half << 20);
    CHECK_FALSE(fs::exists(path.string() + ".2"));
  }
}

TEST_CASE("the job's log has messages, steps, workers and the report") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  spec.command.argv = {"./train.py", "two words"};
  JobDir job = made(spec);
  WriterBench bench(std::move(job));
  const auto& writer = bench.writer;
  const JobLog log(*writer, spec);
  spec.command = {WorkerCommand::Kind::kTrain, {"--epochs", "two\nlines"}, ""};
  (void)JobLog(*writer, spec);
  log.said("a message");
  log.step("a step");
  log.from_node("gpu01", rendezvous::Message());  // of no interest
  rendezvous::WorkerStarted started;
  started.attempt = 1;
  started.rank = 3;
  started.pid = 4711;
  log.from_node("gpu01", started);
  rendezvous::WorkerExited exited;
  exited.attempt = 1;
  exited.rank = 3;
  exited.pid = 4711;
  exited.code = 2;
  log.from_node("gpu01", exited);
  exited.code = 0;
  exited.signal = SIGKILL;
  log.from_node("gpu01", exited);
  exited.pid = 0;
  exited.text = "no such program";
  log.from_node("gpu01", exited);
  log.ended("one\n\ntwo");
  writer->close(seconds(30));
  std::istringstream lines(content(directory.path / "job/ddplaunch.log"));
  std::string text;
  constexpr std::size_t kTime = std::string_view("2026-11-21 07:18:13.250 ").size();
  for (std::string line; std::getline(lines, line);)
    text += line.substr(std::min(kTime, line.size())) + '\n';
  CHECK(text == "info [job] ddplaunch " + std::string(version()) + ", pid " + std::to_string(::getpid()) +
                    ", job run7, hosts 0, worker: ./train.py 'two words'\n"
                    "info [job] ddplaunch " +
                    std::string(version()) + ", pid " + std::to_string(::getpid()) +
                    ", job run7, hosts 0, worker: train --epochs (an argument of several lines)\n"
                    "info [job] a message\n"
                    "debug [job] a step\n"
                    "debug [job] gpu01: attempt 1: rank 3 started, pid 4711\n"
                    "info [job] gpu01: attempt 1: rank 3, pid 4711 exited 2\n"
                    "info [job] gpu01: attempt 1: rank 3, pid 4711 killed by SIGKILL\n"
                    "info [job] gpu01: attempt 1: rank 3, pid 0 did not start: no such program\n"
                    "info [job] one\ninfo [job] \ninfo [job] two\n");
}

TEST_CASE("of many attempts the short ones between the first and the last are packed into one file") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  const fs::path job = directory.path / "job";
  const std::string large((64u << 10) - 5, 'x');  // with "error\n" one byte too much
  {
    JobDir files = made(spec);
    for (std::uint32_t attempt = 0; attempt <= 30; ++attempt) {
      if (attempt == 9) continue;  // it wrote nothing
      (void)files.write({attempt, 0, 0, 1},
                        attempt == 4   ? large
                        : attempt == 3 ? large.substr(1)
                                       : "out " + std::to_string(attempt),
                        kStart);
      (void)files.write({attempt, 1, 1, 2}, "error\n", kStart);
      if (attempt == 5) (void)files.write({attempt, 0, 0, kJsonLines}, "{}\n", kStart);
      if (attempt == 7) files.lose({attempt, 1, 1, 2}, 3);
    }
    CHECK(files.finish() == "warning: the job's files are incomplete; missing: 3 bytes of " +
                                (job / "attempt_7/rank_00001.stderr").string());
  }
  // The first 3 and the last 20 of 31 attempts stay, so 3 to 10 are packed. But 4 is large, 5 has
  // lines.jsonl, and bytes of 7 are missing.
  for (std::uint32_t attempt = 0; attempt <= 30; ++attempt) {
    const bool gone = attempt == 3 || attempt == 6 || (attempt >= 8 && attempt <= 10);
    INFO(attempt);
    CHECK(fs::exists(job / ("attempt_" + std::to_string(attempt))) == !gone);
  }
  std::string packed;
  for (const int attempt : {3, 6, 8, 10}) {
    const std::string number = std::to_string(attempt);
    const std::string out = attempt == 3 ? large.substr(1) : "out " + number;
    packed += "==> attempt_" + number + "/rank_00000.stdout, " + std::to_string(out.size()) + " bytes <==\n" +
              out + "\n==> attempt_" + number + "/rank_00001.stderr, 6 bytes <==\nerror\n";
  }
  CHECK(content(job / "short_attempts.txt") == packed);
  CHECK(content(job / "attempt_4/rank_00000.stdout") == large);
}

TEST_CASE("with parts of a limited size no attempt is packed") {
  const TemporaryDirectory directory;
  JobSpec spec = spec_in(directory);
  spec.output.log_max_size = 1'000;
  JobDir files = made(spec);
  const std::string line = std::string(600, 'x') + '\n';
  for (std::uint32_t attempt = 0; attempt <= 30; ++attempt)
    (void)files.write({attempt, 0, 0, 1}, line + line, kStart);
  CHECK(content(directory.path / "job/attempt_5/rank_00000.stdout") == line);
  CHECK(content(directory.path / "job/attempt_5/rank_00000.stdout.1") == line);
  CHECK_FALSE(fs::exists(directory.path / "job/short_attempts.txt"));
}

TEST_CASE("an attempt that cannot be packed as a whole stays as it is") {
  const TemporaryDirectory directory;
  JobDir files = made(spec_in(directory));
  const fs::path job = directory.path / "job";
  fs::create_directory(job / "short_attempts.txt");  // nothing can be appended
  for (std::uint32_t attempt = 0; attempt <= 24; ++attempt)
    (void)files.write({attempt, 0, 0, 1}, "out\n", kStart);
  CHECK(content(job / "attempt_3/rank_00000.stdout") == "out\n");
  fs::remove(job / "short_attempts.txt");
  std::ofstream(job / "short_attempts.txt") << "earlier\n";
  {
    const FileLimit limit(10);  // there is room for a part only
    pack_short_attempt(job, 3);
  }
  CHECK(content(job / "short_attempts.txt") == "earlier\n");
  CHECK(content(job / "attempt_3/rank_00000.stdout") == "out\n");
  pack_short_attempt(job, 3);
  CHECK(content(job / "short_attempts.txt") ==
        "earlier\n==> attempt_3/rank_00000.stdout, 4 bytes <==\nout\n");
  CHECK_FALSE(fs::exists(job / "attempt_3"));
}

TEST_CASE("times.txt has the size of each stream every 10 s") {
  const TemporaryDirectory directory;
  JobDir job = made(spec_in(directory));
  const OutputKey key{0, 3, 0, 2};
  const fs::path times = directory.path / "job/attempt_0/times.txt";
  job.write(key, "one\n", kStart + seconds(1));
  job.write(key, "two\n", kStart + seconds(10));
  CHECK_FALSE(fs::exists(times));
  job.write(key, "three\n", kStart + seconds(11));
  job.write(key, "four\n", kStart + seconds(12));
  job.write(key, "five\n", kStart + seconds(30));
  for (const std::uint8_t of_the_job : {kJournal, kJsonLines}) {
    for (const int second : {60, 80})
      job.write({0, 0, 0, of_the_job}, "{}\n", kStart + seconds(second));
  }
  std::istringstream lines(content(times));
  std::vector<std::pair<std::string, int>> sizes;
  std::int64_t time = 0;
  std::string name;
  for (int size = 0; lines >> time >> name >> size;)
    sizes.emplace_back(name, size);
  CHECK(sizes ==
        std::vector<std::pair<std::string, int>>{{"rank_00003.stderr", 8}, {"rank_00003.stderr", 19}});
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  CHECK(std::chrono::abs(now - milliseconds(time)) < seconds(60));
}

TEST_CASE("a report is replaced atomically") {
  const TemporaryDirectory directory;
  const auto path = directory.path / "report.json";
  REQUIRE(write_report(path, "one").has_value());
  REQUIRE(write_report(path, "two, longer").has_value());
  CHECK(content(path) == "two, longer");
  std::ofstream(path.string() + ".part" + std::to_string(::getpid()))
      << "of an earlier process with this pid";
  REQUIRE(write_report(path, "two").has_value());
  CHECK(content(path) == "two");
  // A symbolic link is followed and stays a link.
  const auto link = directory.path / "link";
  fs::create_symlink(path, link);
  REQUIRE(write_report(link, "three").has_value());
  CHECK(fs::is_symlink(link));
  CHECK(content(path) == "three");
  CHECK(std::distance(fs::directory_iterator(directory.path), {}) == 2);  // nothing else left
}

TEST_CASE("a report that cannot be written is an error, and leaves nothing") {
  const TemporaryDirectory directory;
  const auto missing = write_report(directory.path / "no" / "report.json", "x");
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error().text.ends_with(": No such file or directory"));
  CHECK_FALSE(write_report(directory.path, "x").has_value());
  CHECK(write_report("/dev/null", "x").has_value());
  struct stat null {};
  REQUIRE(::stat("/dev/null", &null) == 0);
  CHECK(S_ISCHR(null.st_mode));
  const auto full = write_report("/dev/full", "x");
  REQUIRE_FALSE(full.has_value());
  CHECK(full.error().sys == ENOSPC);
  REQUIRE(::mkfifo((directory.path / "pipe").c_str(), 0600) == 0);
  CHECK_FALSE(write_report(directory.path / "pipe", "x").has_value());  // without a reader it fails at once
  CHECK(std::distance(fs::directory_iterator(directory.path), {}) == 1);
  const std::string path = directory.path / "report.json";
  REQUIRE(write_report(path, "old").has_value());
  {
    const FileLimit limit(10);
    const auto cut = write_report(path, "0123456789abc");
    REQUIRE_FALSE(cut.has_value());
    CHECK(cut.error().text == "write " + path + ".part" + std::to_string(::getpid()) + ": File too large");
  }
  CHECK(content(path) == "old");
  CHECK(std::distance(fs::directory_iterator(directory.path), {}) == 2);
}

TEST_CASE("a report that cannot be renamed is an error, and leaves the old one", "[root]") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "report.json";
  REQUIRE(write_report(path, "old").has_value());
  const bool mounted = with_mount(path, path, "", MS_BIND, "", [&] {
    const auto written = write_report(path, "new");
    REQUIRE(written.has_error());
    CHECK(written.error().text == "rename " + path + ".part" + std::to_string(::getpid()) + " to " + path +
                                      ": Device or resource busy");
    CHECK(content(path) == "old");
  });
  CHECK(std::distance(fs::directory_iterator(directory.path), {}) == 1);
  if (!mounted) SKIP_TEST("only root can mount");
}

TEST_CASE("a reserved report is written where it lies") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "report.json", reserved = path + ".reserved";
  std::atomic<std::size_t> done = 0;
  REQUIRE(reserve_report(path).has_value());
  CHECK_FALSE(fs::exists(path));  // an empty report would look like an end
  struct stat before {
  }, after{};
  REQUIRE(::stat(reserved.c_str(), &before) == 0);
  CHECK(before.st_blocks * 512 >= static_cast<off_t>(kReservedBytes));
  CHECK(write_reports("text", "brief", {{path, 0600, true}}, done).empty());
  CHECK(content(path) == "text");
  REQUIRE(::stat(path.c_str(), &after) == 0);
  CHECK(after.st_ino == before.st_ino);
  CHECK_FALSE(fs::exists(reserved));
}

TEST_CASE("a reserved report is brief where the disk has no room for more") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "report.json";
  std::atomic<std::size_t> done = 0;
  REQUIRE(reserve_report(path).has_value());
  {
    const FileLimit limit(10);
    const auto warnings = write_reports("0123456789abc", "brief", {{path, 0600, true}}, done);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].starts_with("warning: the report has no details: write " + path + ".part"));
  }
  CHECK(content(path) == "brief");
  CHECK(std::distance(fs::directory_iterator(directory.path), {}) == 1);
}

TEST_CASE("a report is written without its reservation, and beside one that is too small") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "report.json";
  std::atomic<std::size_t> done = 0;
  CHECK(write_reports("text", "brief", {{path, 0600, true}}, done).empty());  // somebody has deleted it
  CHECK(content(path) == "text");
  REQUIRE(reserve_report(path).has_value());
  const std::string longer(2 * kReservedBytes, 'x');
  CHECK(write_reports(longer, "brief", {{path, 0600, true}}, done).empty());
  CHECK(content(path) == longer);
  {
    const FileLimit limit(10);
    CHECK(reserve_report(path).has_error());
  }
  CHECK(std::distance(fs::directory_iterator(directory.path), {}) == 1);
}

TEST_CASE("each report that cannot be written is a warning, and the others are written") {
  const TemporaryDirectory directory;
  std::atomic<std::size_t> done = 0;
  const std::string missing = directory.path / "no/report.json";
  const auto warnings = write_reports("text", "", {{missing}, {directory.path / "report.json", 0600}}, done);
  CHECK(warnings ==
        std::vector<std::string>{"warning: the report was not written: create " + missing + ".part" +
                                 std::to_string(::getpid()) + ": No such file or directory"});
  CHECK(done == 2);
  CHECK(content(directory.path / "report.json") == "text");
  struct stat status {};
  REQUIRE(::stat((directory.path / "report.json").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}
