#include "launcher/output/console.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include "base/unique_fd.h"
#include "tests/support/catch.h"

using namespace ddp;
using namespace ddp::launcher;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

struct Pipe {
  Pipe() {
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

// Reads until `end` has arrived, 10 s at most.
std::string read_until(const UniqueFd& fd, std::string_view end) {
  std::string all;
  while (all.find(end) == std::string::npos) {
    pollfd ready{fd.get(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 10'000) == 1);
    char buffer[65536];
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    REQUIRE(count > 0);
    all.append(buffer, static_cast<std::size_t>(count));
  }
  return all;
}

}  // namespace

TEST_CASE("stderr does not wait for stdout") {
  asio::io_context loop;
  Pipe out;
  Pipe err;
  Console console(
      loop.get_executor(), [] {}, ConsolePolicy::kAuto, out.writer.get(), err.writer.get());
  console.add(1, std::string(1u << 20, 'x'));
  console.write(2, "words\n");
  CHECK(console.flush(2, seconds(10)));
  CHECK(read_until(err.reader, "\n") == "words\n");
  CHECK_FALSE(console.flush(1, milliseconds(1)));
  CHECK_FALSE(console.is_terminal(1));
  out.reader.reset();  // its write fails, which ends the lane
}

TEST_CASE("a full pipe holds output back, and reports free space") {
  asio::io_context loop;
  Pipe out;
  bool drained = false;
  Console console(
      loop.get_executor(), [&] { drained = true; }, ConsolePolicy::kAuto, out.writer.get(), out.writer.get());
  std::size_t added = 0;
  const std::string line = std::string(1023, 'x') + "\n";
  const auto add = [&] {
    console.add(1, line);
    added += line.size();
  };
  while (!console.full())
    add();
  // The pipe has no reader, but the console's thread may still fill the pipe. With that many more bytes the
  // queue stays full.
  const int capacity = ::fcntl(out.writer.get(), F_GETPIPE_SZ);
  REQUIRE(capacity > 0);
  for (const std::size_t enough = added + static_cast<std::size_t>(capacity); added <= enough;)
    add();
  CHECK(console.full(2));  // the same queue
  CHECK(added > ConsoleQueue::kHigh);
  console.add(1, "end\n");
  CHECK(read_until(out.reader, "end\n").size() == added + 4);
  CHECK(console.flush(1, seconds(10)));
  loop.run();
  CHECK(drained);
}

TEST_CASE("with drop, output is skipped for a pipe that is not read") {
  asio::io_context loop;
  Pipe out;
  Console console(
      loop.get_executor(), [] {}, ConsolePolicy::kDrop, out.writer.get(), out.writer.get());
  const std::string line = std::string(1023, 'x') + "\n";
  for (int i = 0; i < 20'000; ++i)
    console.add(1, line);
  CHECK_FALSE(console.full());
  console.write(1, "end\n");
  const std::string all = read_until(out.reader, "end\n");
  auto lines = std::count(all.begin(), all.end(), '\n') - 1;
  const std::string words = "ddplaunch: … ";
  for (std::size_t gap = all.find(words); gap != std::string::npos; gap = all.find(words, gap + 1)) {
    std::string number = all.substr(gap + words.size(), 20);
    number.erase(std::remove(number.begin(), number.end(), ','), number.end());
    lines += std::stol(number) - 1;
  }
  CHECK(lines == 20'000);
}

TEST_CASE("a closed reader is detected, and nothing waits for it") {
  asio::io_context loop;
  Pipe out;
  Pipe err;
  Console console(
      loop.get_executor(), [] {}, ConsolePolicy::kAuto, out.writer.get(), err.writer.get());
  out.reader.reset();
  console.add(1, "line\n");
  CHECK(console.flush(1, seconds(10)));
  CHECK(console.broken(1) == EPIPE);
  CHECK(console.broken(2) == 0);
  console.add(1, std::string(ConsoleQueue::kHigh + 1, 'x'));
  CHECK_FALSE(console.full(1));
}

TEST_CASE("rows are below the lines of a terminal, can be hidden, and end with it") {
  asio::io_context loop;
  Pty terminal;
  {
    Console console(
        loop.get_executor(), [] {}, ConsolePolicy::kAuto, terminal.writer.get(), terminal.writer.get());
    REQUIRE(console.shows_rows(1));
    console.show(1, {{"bar 1%", ""}});
    CHECK(read_until(terminal.reader, "bar 1%\x1b[K").find('x') == std::string::npos);
    console.add(1, "line\n");
    console.show(2, {{"other", ""}});
    read_until(terminal.reader, "other\x1b[K");
    console.suspend();
    read_until(terminal.reader, "\x1b[2A\x1b[K\x1b[B\x1b[K\x1b[B\x1b[2A");
    console.add(1, "meanwhile\n");
    read_until(terminal.reader, "meanwhile\r\n");
    console.resume();
    read_until(terminal.reader, "other\x1b[K");
  }
  read_until(terminal.reader, "\x1b[2A\x1b[K\x1b[B\x1b[K\x1b[B\x1b[2A");
}

TEST_CASE("the reader of a pipe is found") {
  Pipe pipe;
  CHECK(pipe_reader(pipe.writer.get()).empty());  // this process does not count
  CHECK(pipe_reader(::open("/dev/null", O_RDWR | O_CLOEXEC)).empty());
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::string reader = pipe_reader(pipe.writer.get());
  CHECK(reader.find("(pid " + std::to_string(child) + ")") != std::string::npos);
  ::kill(child, SIGKILL);
  CHECK(::waitpid(child, nullptr, 0) == child);
}
