#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

/// The ends of a console, and a directory for a job's files.
namespace ddp::test {

struct OutputPipe {
  OutputPipe() {
    ::signal(SIGPIPE, SIG_IGN);  // as in the program
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
  }
  UniqueFd reader;
  UniqueFd writer;
};

struct Pty {
  Pty() {
    int ends[2];
    const winsize size{24, 80, 0, 0};
    REQUIRE(::openpty(&ends[0], &ends[1], nullptr, nullptr, &size) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
    ::setenv("TERM", "xterm", 1);
  }
  UniqueFd reader;
  UniqueFd writer;
};

/// Reads until `end` has arrived; gives up when nothing comes for a minute.
inline std::string read_until(const UniqueFd& fd, std::string_view end) {
  std::string all;
  for (std::size_t from = 0; all.find(end, from) == std::string::npos;) {
    from = all.size() - std::min(all.size(), end.size());
    pollfd ready{fd.get(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 60'000) == 1);
    char buffer[65536];
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    REQUIRE(count > 0);
    all.append(buffer, static_cast<std::size_t>(count));
  }
  return all;
}

/// Reads what has already arrived.
inline std::string read_available(const UniqueFd& fd) {
  std::string all(65536, '\0');
  pollfd ready{fd.get(), POLLIN, 0};
  const ssize_t count = ::poll(&ready, 1, 0) == 1 ? ::read(fd.get(), all.data(), all.size()) : 0;
  all.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return all;
}

inline std::string content(const std::filesystem::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();  // an iterator is slow without optimization
  return bytes.str();
}

}  // namespace ddp::test
