#include "base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "base/unique_fd.h"
#include "tests/support/catch.h"

using namespace ddp;

TEST_CASE("bytes that were written are read again, whole or only their start") {
  const std::string path =
      std::filesystem::temp_directory_path() / ("file_bytes." + std::to_string(::getpid()));
  const std::string bytes = "first\nsecond" + std::string(100'000, 'x');
  {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    REQUIRE(write_bytes(file.get(), bytes, path).has_value());
  }
  CHECK(first_line(path) == "first");
  CHECK(read_start(path, 7) == "first\ns");
  CHECK(read_start(path, 1'000'000) == bytes);
  std::filesystem::remove(path);
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
