#include "base/files.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

namespace ddp {
namespace {

TEST_CASE("bytes that were written are read again, whole or only their start") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path / "file";
  const std::string bytes = "first\nsecond" + std::string(100'000, 'x');
  {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    REQUIRE(write_bytes(file.get(), bytes, path).has_value());
  }
  CHECK(first_line(path) == "first");
  CHECK(read_start(path, 7) == "first\ns");
  CHECK(read_start(path, 1'000'000) == bytes);
}

TEST_CASE("a file that cannot be read is empty, and a failed write names the path") {
  CHECK(first_line("/nonexistent/file").empty());
  errno = 0;
  CHECK(read_start("/nonexistent/file", 10).empty());
  CHECK(errno == ENOENT);
  const UniqueFd read_only(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto written = write_bytes(read_only.get(), "x", "the list");
  REQUIRE_FALSE(written.has_value());
  CHECK(written.error().text == "write the list: Bad file descriptor");
}

/// The number of entries that a directory has before reading it fails with EIO; negative: all.
int entries_left = -1;

template <class Entry>
Entry* read_or_fail(DIR* directory, const char* name) {
  if (entries_left == 0) {
    errno = EIO;
    return nullptr;
  }
  if (entries_left > 0) --entries_left;
  return reinterpret_cast<Entry* (*)(DIR*)>(dlsym(RTLD_NEXT, name))(directory);
}

// These functions replace libc's, also for the standard library.
extern "C" dirent* readdir(DIR* directory) {
  return read_or_fail<dirent>(directory, "readdir");
}
extern "C" dirent64* readdir64(DIR* directory) {
  return read_or_fail<dirent64>(directory, "readdir64");
}

namespace fs = std::filesystem;

struct Directory : test::TemporaryDirectory {
  Directory() {
    for (const char* name : {"a", "b", "c"})
      write(name, name);
  }
  ~Directory() { entries_left = -1; }
};

TEST_CASE("a pipe has two ends that no program inherits, or an error that says what it is for") {
  const auto [out, in] = make_pipe("a pipe").value();
  CHECK((::fcntl(out.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((::fcntl(in.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(::write(in.get(), "x", 1) == 1);
  char read = 0;
  CHECK(::read(out.get(), &read, 1) == 1);
  CHECK(read == 'x');

  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto refused = make_pipe("a pipe for a test");
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE(refused.has_error());
  CHECK(refused.error().sys == EMFILE);
  CHECK(refused.error().text.starts_with("a pipe for a test: "));
  CHECK(refused.error().text.ends_with("; raise the limit of open files on this node (ulimit -n)"));
}

TEST_CASE("a directory is listed, and a missing one has no entries") {
  const Directory directory;
  auto entries = list_directory(directory.path);
  std::sort(entries.begin(), entries.end());
  CHECK(entries == std::vector<fs::path>{directory.path / "a", directory.path / "b", directory.path / "c"});
  std::error_code failed;
  CHECK(list_directory(directory.path / "none", failed).empty());
  CHECK(failed == std::errc::no_such_file_or_directory);
}

TEST_CASE("a directory that cannot be read to its end gives the entries read so far, without an exception") {
  const Directory directory;
  std::error_code failed;
  entries_left = 4;  // includes "." and ".."
  CHECK(list_directory(directory.path, failed).size() <= 4);
  CHECK(entries_left == 0);
  CHECK(failed == std::errc::io_error);
}

class ProgramDirectory {
 public:
  ProgramDirectory() {
    REQUIRE(::mkdtemp(directory_) != nullptr);
    fs::create_directories(path("opt/bin"));
    std::ofstream(path("opt/bin/program")) << "#!/bin/sh\n";
    for (const char* part : {"opt", "opt/bin", "opt/bin/program"})
      allow(part, 0755);
  }
  ~ProgramDirectory() {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  ProgramDirectory(const ProgramDirectory&) = delete;
  ProgramDirectory& operator=(const ProgramDirectory&) = delete;
  std::string path(const std::string& below) const { return std::string(directory_) + '/' + below; }
  void allow(const char* below, unsigned mode) const { REQUIRE(::chmod(path(below).c_str(), mode) == 0); }
  std::string judge() const { return distrust_program(path("opt/bin/program")); }

 private:
  char directory_[32] = "/tmp/ddplaunch-path-XXXXXX";
};

TEST_CASE("a program is safe if only root and this user can write to it and to its parents") {
  const ProgramDirectory host;
  CHECK(host.judge().empty());
  for (const char* part : {"opt/bin/program", "opt/bin", "opt"}) {
    host.allow(part, 0757);
    CHECK(host.judge() == "other users may write to " + host.path(part));
    host.allow(part, 0755);
  }
  host.allow("opt", 01777);
  CHECK(host.judge().empty());
  host.allow("opt/bin/program", 01757);  // the bit means nothing for a file
  CHECK_FALSE(host.judge().empty());
  CHECK(distrust_program(host.path("opt/none")).empty());
}

TEST_CASE("a program of another user or group is not safe, also behind a link") {
  if (::geteuid() != 0) SKIP_TEST("needs root");
  const ProgramDirectory host;
  for (const char* part : {"opt/bin/program", "opt/bin", "opt"}) {
    REQUIRE(::chown(host.path(part).c_str(), 12345, 0) == 0);
    CHECK(host.judge().find("belongs to uid 12345") != std::string::npos);
    REQUIRE(::chown(host.path(part).c_str(), 0, 12345) == 0);
    host.allow(part, 0775);
    CHECK(host.judge() == "other users may write to " + host.path(part));
    REQUIRE(::chown(host.path(part).c_str(), 0, 0) == 0);
    CHECK(host.judge().empty());
    host.allow(part, 0755);
  }
  fs::create_symlink(host.path("opt/bin/program"), host.path("link"));
  REQUIRE(::chown(host.path("opt").c_str(), 12345, 0) == 0);
  CHECK_FALSE(distrust_program(host.path("link")).empty());
}

}  // namespace
}  // namespace ddp
