#include "launcher/control/history_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/program.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

constexpr HistoryTime kNow{std::chrono::seconds(1'795'230'119)};
const std::string kLine = fault_line({"gpu07", kNow, "lost", false, "run7"});

struct HistoryDirectory : private test::TemporaryDirectory {
  std::string path() const { return TemporaryDirectory::path; }
  std::string own(const std::string& end = ".jsonl") const {
    return path() + '/' + std::to_string(::geteuid()) + '.' + host_name() + end;
  }
  int failures() const {
    const auto history = read_host_history(path(), kNow);
    REQUIRE(history.has_value());
    int count = 0;
    for (const HostRecord& record : history->records())
      count += record.failures;
    return count;
  }
};

TEST_CASE("a missing directory is an empty history, and is made for the first failure") {
  const HistoryDirectory parent;
  const std::string path = parent.path() + "/state/ddplaunch/hosts";
  const auto empty = read_host_history(path, kNow);
  REQUIRE(empty.has_value());
  CHECK(empty->records().empty());
  CHECK_FALSE(fs::exists(path));
  REQUIRE(append_host_history(path, kLine).has_value());
  REQUIRE(append_host_history(path, kLine).has_value());
  CHECK(read_host_history(path, kNow)->records().at(0).failures == 2);
  CHECK((fs::status(path).permissions() & fs::perms::all) == fs::perms::owner_all);
}

TEST_CASE("lines of many writers at once stay whole") {
  const HistoryDirectory directory;
  constexpr int kWriters = 8, kLines = 50;
  std::vector<std::thread> writers;
  for (int i = 0; i < kWriters; ++i)
    writers.emplace_back([&directory] {
      for (int k = 0; k < kLines; ++k)
        (void)append_host_history(directory.path(), kLine);
    });
  for (std::thread& writer : writers)
    writer.join();
  CHECK(directory.failures() == kWriters * kLines);
}

TEST_CASE("a line that a full disk has cut costs no other line") {
  const HistoryDirectory directory;
  std::ofstream(directory.own()) << kLine.substr(0, 20);
  REQUIRE(append_host_history(directory.path(), kLine).has_value());
  CHECK(directory.failures() == 1);
}

TEST_CASE("a full file becomes the older one of two") {
  const HistoryDirectory directory;
  std::string lines;
  while (lines.size() <= (128u << 10))
    lines += kLine;
  std::ofstream(directory.own()) << lines;
  const int before = directory.failures();
  REQUIRE(append_host_history(directory.path(), kLine).has_value());
  CHECK(directory.failures() == before + 1);
  CHECK(fs::file_size(directory.own()) == kLine.size());
  CHECK(fs::file_size(directory.own("~.jsonl")) == lines.size());
}

TEST_CASE("only files count whose owners are those of their names") {
  const HistoryDirectory directory;
  const std::string stranger = directory.path() + '/' + std::to_string(::geteuid() + 1) + ".head.jsonl";
  std::ofstream(stranger) << kLine;
  std::ofstream(directory.path() + "/notes.jsonl") << kLine;
  std::ofstream(directory.path() + "/" + std::to_string(::geteuid()) + ".txt") << kLine;
  std::ofstream(directory.path() + "/target") << kLine;
  fs::create_symlink("target", directory.own("-link.jsonl"));
  REQUIRE(::mkfifo(directory.own("-pipe.jsonl").c_str(), 0600) == 0);
  fs::create_directory(directory.own("-directory.jsonl"));
  CHECK(directory.failures() == 0);
}

TEST_CASE("a user with many files hides no file of others") {
  if (::geteuid() != 0) return;  // files of other users are needed
  const HistoryDirectory directory;
  const auto make = [&](const std::string& name, uid_t owner) {
    const std::string path = directory.path() + '/' + name + ".jsonl";
    std::ofstream(path) << (owner == 4 ? kLine : "");
    REQUIRE(::chown(path.c_str(), owner, static_cast<gid_t>(-1)) == 0);
  };
  for (int i = 0; i < 2100; ++i) {
    make("1.forged" + std::to_string(i), 3);
    make("2.many" + std::to_string(i), 2);
  }
  make("4.head", 4);
  CHECK(directory.failures() == 1);
}

TEST_CASE("nothing is appended through a link") {
  const HistoryDirectory directory;
  std::ofstream(directory.path() + "/target") << "secret\n";
  fs::create_symlink("target", directory.own());
  CHECK_FALSE(append_host_history(directory.path(), kLine).has_value());
  fs::remove(directory.own());
  fs::create_hard_link(directory.path() + "/target", directory.own());
  const auto linked = append_host_history(directory.path(), kLine);
  REQUIRE_FALSE(linked.has_value());
  CHECK(linked.error().text == directory.own() + " is no file of this user alone; remove it");
  CHECK(first_line(directory.path() + "/target") == "secret");
  CHECK(fs::file_size(directory.path() + "/target") == 7);
}

TEST_CASE("a directory of several users needs the sticky bit, and others may read its files") {
  const HistoryDirectory directory;
  ::chmod(directory.path().c_str(), 0777);
  const std::string why =
      directory.path() + ": everybody may delete files there; set its sticky bit (chmod +t)";
  CHECK(read_host_history(directory.path(), kNow).error().text == why);
  CHECK(append_host_history(directory.path(), kLine).error().text == why);
  ::chmod(directory.path().c_str(), 01777);
  const mode_t before = ::umask(077);
  CHECK(append_host_history(directory.path(), kLine).has_value());
  ::umask(before);
  CHECK(directory.failures() == 1);
  struct stat found {};
  REQUIRE(::stat(directory.own().c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0644);
}

TEST_CASE("a file of any length is read to its limit, from a whole line on") {
  const HistoryDirectory directory;
  std::ofstream(directory.own()) << std::string(1u << 20, 'x') << '\n' << kLine;
  CHECK(directory.failures() == 1);
  std::ofstream(directory.own()) << std::string(1u << 20, 'x');
  CHECK(directory.failures() == 0);
}

}  // namespace
}  // namespace ddp::launcher
