#include "base/files.h"

#include <dirent.h>
#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "tests/support/catch.h"

namespace {

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

}  // namespace

// These functions replace libc's, also for the standard library.
extern "C" dirent* readdir(DIR* directory) {
  return read_or_fail<dirent>(directory, "readdir");
}
extern "C" dirent64* readdir64(DIR* directory) {
  return read_or_fail<dirent64>(directory, "readdir64");
}

namespace ddp {
namespace {

namespace fs = std::filesystem;

struct Directory {
  Directory() {
    fs::create_directories(path);
    for (const char* name : {"a", "b", "c"})
      std::ofstream(path / name) << name;
  }
  ~Directory() {
    entries_left = -1;
    fs::remove_all(path);
  }
  fs::path path = fs::temp_directory_path() / ("ddp-list-" + std::to_string(::getpid()));
};

}  // namespace

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

}  // namespace ddp
