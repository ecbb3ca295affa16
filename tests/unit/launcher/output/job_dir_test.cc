#include "launcher/output/job_dir.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/unit/launcher/output/job_fixtures.h"
#include "tests/unit/launcher/output/output_fixtures.h"

using namespace ddp;
using namespace ddp::launcher;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::content;
using test::FileLimit;
using test::kStart;
using test::made;
using test::spec_in;
using test::TemporaryDirectory;
using test::with_mount;
namespace fs = std::filesystem;

namespace {

/// Returns why the directories cannot be used, which is a mistake of the user; empty: they can.
std::string refusal_of(const JobSpec& spec) {
  const auto job = JobDir::create(spec);
  if (job) return "";
  CHECK(job.error().code == ErrorCode::kUsage);
  return job.error().text;
}

bool disk_has_locks = true;

}  // namespace

/// Replaces the system's function in this program.
extern "C" int flock(int fd, int operation) noexcept {
  if (disk_has_locks) return static_cast<int>(::syscall(SYS_flock, fd, operation));
  errno = ENOLCK;
  return -1;
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
