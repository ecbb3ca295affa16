#include "launcher/output/output_file.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/unit/launcher/output/job_fixtures.h"
#include "tests/unit/launcher/output/output_fixtures.h"

using namespace ddp;
using namespace ddp::launcher;
using test::content;
using test::FileLimit;
using test::TemporaryDirectory;
using test::with_mount;
namespace fs = std::filesystem;

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

TEST_CASE("no file is written through a link") {
  const TemporaryDirectory directory;
  fs::create_symlink(directory.path / "target", directory.path / "out");
  OutputFile file(directory.path / "out", {});
  CHECK(file.write("one\n").error.sys == ELOOP);
  CHECK_FALSE(fs::exists(directory.path / "target"));
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
