#include "launcher/output/console.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/catch.h"
#include "tests/unit/launcher/output/output_fixtures.h"

using namespace ddp;
using namespace ddp::launcher;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::OutputPipe;
using test::Pty;
using test::read_until;

TEST_CASE("stderr does not wait for stdout") {
  asio::io_context loop;
  OutputPipe out;
  OutputPipe err;
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
  OutputPipe out;
  int drained = 0;
  Console console(
      loop.get_executor(), [&] { ++drained; }, ConsolePolicy::kAuto, out.writer.get(), out.writer.get());
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
  CHECK(drained == 1);
}

TEST_CASE("a pipe that another process made non-blocking still gets everything") {
  asio::io_context loop;
  OutputPipe out;
  REQUIRE(::fcntl(out.writer.get(), F_SETFL, O_NONBLOCK) == 0);
  Console console(
      loop.get_executor(), [] {}, ConsolePolicy::kAuto, out.writer.get(), out.writer.get());
  std::string line = "\n";  // an idle pipe takes it at once, and it must not be queued as well
  console.hand_over(1, line);
  CHECK(line.empty());
  console.add(1, std::string(1u << 20, 'x'));
  console.write(1, "end\n");
  CHECK(read_until(out.reader, "end\n").size() == 1 + (1u << 20) + 4);
  CHECK(console.broken(1) == 0);
}

TEST_CASE("rows need a terminal that can move its cursor") {
  asio::io_context loop;
  const OutputPipe out;
  const Pty terminal;
  for (const char* term : {"xterm", "dumb", ""}) {
    ::setenv("TERM", term, 1);
    const Console console(
        loop.get_executor(), [] {}, ConsolePolicy::kAuto, out.writer.get(), terminal.writer.get());
    CHECK_FALSE(console.is_terminal(1));
    CHECK_FALSE(console.shows_rows(1));
    CHECK(console.is_terminal(2));
    CHECK(console.shows_rows(2) == (std::string(term) == "xterm"));
  }
}

TEST_CASE("with drop, output is skipped for a pipe that is not read") {
  asio::io_context loop;
  OutputPipe out;
  Console console(
      loop.get_executor(), [] {}, ConsolePolicy::kDrop, out.writer.get(), out.writer.get());
  const std::string line = std::string(1023, 'x') + "\n";
  for (int i = 0; i < 10'000; ++i) {
    if (i == 5'000) console.write(1, "kept\n");
    console.add(1, line);
    std::string another = line;
    console.hand_over(1, another);
  }
  CHECK_FALSE(console.full());
  console.write(1, "end\n");
  const std::string all = read_until(out.reader, "end\n");
  CHECK(all.size() < 2 * ConsoleQueue::kSkipAt);
  CHECK(all.find("\nkept\n") != std::string::npos);
  auto lines = std::count(all.begin(), all.end(), '\n') - 2;
  const std::string words = "ddplaunch: … ";
  for (std::size_t gap = all.find(words); gap != std::string::npos; gap = all.find(words, gap + 1)) {
    std::string number = all.substr(gap + words.size(), 20);
    number.erase(std::remove(number.begin(), number.end(), ','), number.end());
    lines += std::stol(number) - 1;
  }
  CHECK(lines == 20'000);
}

TEST_CASE("output is skipped for a terminal that is not read") {
  asio::io_context loop;
  Pty terminal;
  Console console(
      loop.get_executor(), [] {}, ConsolePolicy::kAuto, terminal.writer.get(), terminal.writer.get());
  const std::string line = std::string(1023, 'x') + "\n";
  for (std::size_t added = 0; added <= 2 * ConsoleQueue::kHigh; added += line.size())
    console.add(1, line);
  CHECK_FALSE(console.full());
  terminal.reader.reset();  // its write fails, which ends the lane
}

TEST_CASE("a closed reader is detected, and nothing waits for it") {
  asio::io_context loop;
  OutputPipe out;
  OutputPipe err;
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
    CHECK_FALSE(console.flush(1, std::chrono::milliseconds(50)));
    console.resume();
    CHECK(read_until(terminal.reader, "other\x1b[K").find("meanwhile\r\n") != std::string::npos);
  }
  read_until(terminal.reader, "\x1b[2A\x1b[K\x1b[B\x1b[K\x1b[B\x1b[2A");
}

TEST_CASE("rows are erased as the terminal has rewrapped them, or not") {
  ::unsetenv("TMUX");
  ::unsetenv("XTERM_VERSION");
  for (const auto& [term, rewraps] :
       {std::pair("xterm", true), std::pair("linux-16color", false), std::pair("rxvt-unicode", false)}) {
    CAPTURE(term);
    asio::io_context loop;
    const Pty terminal;
    ::setenv("TERM", term, 1);
    {
      Console console(
          loop.get_executor(), [] {}, ConsolePolicy::kAuto, terminal.writer.get(), terminal.writer.get());
      console.show(1, {{std::string(30, 'x'), ""}});
      read_until(terminal.reader, "x\x1b[K");
      const winsize narrow{24, 16, 0, 0};
      REQUIRE(::ioctl(terminal.writer.get(), TIOCSWINSZ, &narrow) == 0);
    }
    CHECK(test::read_available(terminal.reader) == (rewraps ? "\r\x1b[K\x1b[2A\x1b[K\x1b[B\x1b[K\x1b[B\x1b[2A"
                                                            : "\r\x1b[K\x1b[1A\x1b[K\x1b[B\x1b[1A"));
  }
}

TEST_CASE("an abandoned lane writes nothing more, and its thread ends") {
  asio::io_context loop;
  const OutputPipe out;
  const int fd = out.writer.get();
  // The thread destroys its callback at its end.
  auto end = std::make_shared<std::promise<void>>();
  const std::future<void> ended = end->get_future();
  auto lane = ConsoleLane::start({{fd, fd}, false, false}, ConsolePolicy::kAuto, loop.get_executor(),
                                 [end = std::move(end)] {});
  lane->push(1, false, "line\n");
  CHECK(lane->flush(1, seconds(10)));  // the thread waits for more
  CHECK(read_until(out.reader, "\n") == "line\n");
  lane->abandon();
  std::string lines = "more\n";
  lane->hand_over(1, lines);
  CHECK(lines.empty());
  lane->push(1, false, "more\n");
  CHECK(lane->flush(1, milliseconds(0)));
  lane.reset();
  CHECK(ended.wait_for(seconds(10)) == std::future_status::ready);
  CHECK(test::read_available(out.reader).empty());
}
