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

namespace {

/// A console over two descriptors, which counts how often it has drained.
struct ConsoleBench {
  ConsoleBench(const UniqueFd& out, const UniqueFd& err, ConsolePolicy policy = ConsolePolicy::kAuto)
      : console(
            loop.get_executor(), [this] { ++drained; }, policy, out.get(), err.get()) {}
  asio::io_context loop;
  int drained = 0;
  Console console;
};

}  // namespace

TEST_CASE("stderr does not wait for stdout") {
  OutputPipe out;
  OutputPipe err;
  ConsoleBench bench(out.writer, err.writer);
  Console& console = bench.console;
  console.add(1, std::string(1u << 20, 'x'));
  console.write(2, "words\n");
  CHECK(console.flush(2, seconds(10)));
  CHECK(read_until(err.reader, "\n") == "words\n");
  CHECK_FALSE(console.flush(1, milliseconds(1)));
  CHECK_FALSE(console.is_terminal(1));
  out.reader.reset();  // its write fails, which ends the lane
}

TEST_CASE("a full pipe holds output back, and reports free space") {
  OutputPipe out;
  ConsoleBench bench(out.writer, out.writer);
  Console& console = bench.console;
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
  bench.loop.run();
  CHECK(bench.drained == 1);
}

TEST_CASE("a pipe that another process made non-blocking still gets everything") {
  OutputPipe out;
  REQUIRE(::fcntl(out.writer.get(), F_SETFL, O_NONBLOCK) == 0);
  ConsoleBench bench(out.writer, out.writer);
  Console& console = bench.console;
  std::string line = "\n";  // an idle pipe takes it at once, and it must not be queued as well
  console.hand_over(1, line);
  CHECK(line.empty());
  line = std::string(1u << 20, 'x') + "y\n";
  console.hand_over(1, line);  // nobody flushes: what the pipe does not take wakes the lane's thread
  CHECK(read_until(out.reader, "y\n").size() == 1 + (1u << 20) + 2);
  console.write(1, "end\n");
  CHECK(read_until(out.reader, "end\n") == "end\n");
  CHECK(console.broken(1) == 0);
}

TEST_CASE("rows need a terminal that can move its cursor") {
  const OutputPipe out;
  const Pty terminal;
  for (const char* term : {"xterm", "dumb", ""}) {
    ::setenv("TERM", term, 1);
    const ConsoleBench bench(out.writer, terminal.writer);
    const Console& console = bench.console;
    CHECK_FALSE(console.is_terminal(1));
    CHECK_FALSE(console.shows_rows(1));
    CHECK(console.is_terminal(2));
    CHECK(console.shows_rows(2) == (std::string(term) == "xterm"));
  }
}

TEST_CASE("with drop, output is skipped for a pipe that is not read") {
  OutputPipe out;
  ConsoleBench bench(out.writer, out.writer, ConsolePolicy::kDrop);
  Console& console = bench.console;
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
  Pty terminal;
  ConsoleBench bench(terminal.writer, terminal.writer);
  Console& console = bench.console;
  const std::string line = std::string(1023, 'x') + "\n";
  for (std::size_t added = 0; added <= 2 * ConsoleQueue::kHigh; added += line.size())
    console.add(1, line);
  CHECK_FALSE(console.full());
  terminal.reader.reset();  // its write fails, which ends the lane
}

TEST_CASE("a closed reader is detected, and nothing waits for it") {
  OutputPipe out;
  OutputPipe err;
  ConsoleBench bench(out.writer, err.writer);
  Console& console = bench.console;
  out.reader.reset();
  console.add(1, "line\n");
  CHECK(console.flush(1, seconds(10)));
  CHECK(console.broken(1) == EPIPE);
  CHECK(console.broken(2) == 0);
  console.add(1, std::string(ConsoleQueue::kHigh + 1, 'x'));
  CHECK_FALSE(console.full(1));
}

TEST_CASE("rows are below the lines of a terminal, can be hidden, and end with it") {
  Pty terminal;
  {
    ConsoleBench bench(terminal.writer, terminal.writer);
    Console& console = bench.console;
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
    const Pty terminal;
    ::setenv("TERM", term, 1);
    {
      ConsoleBench bench(terminal.writer, terminal.writer);
      bench.console.show(1, {{std::string(30, 'x'), ""}});
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

using namespace ddp::launcher;

namespace {

// Takes segments until the queue is empty.
std::string drain(ConsoleQueue& queue) {
  std::string all;
  while (!queue.empty()) {
    ConsoleQueue::Segment segment = queue.pop();
    all += segment.bytes;
    queue.done(segment);
  }
  CHECK(queue.waiting(1) == 0);
  CHECK(queue.waiting(2) == 0);
  return all;
}

std::string numbered(int first, int last) {
  std::string lines;
  for (int i = first; i <= last; ++i)
    lines += "line " + std::to_string(i) + "\n";
  return lines;
}

}  // namespace

TEST_CASE("segments of one kind are joined, and the total order is kept") {
  ConsoleQueue queue(false, 16);
  queue.push(1, false, "a\n");
  queue.push(1, false, "b\n");
  queue.push(1, true, "ours\n");
  queue.push(2, false, "c\n");
  queue.push(1, false, "d\n");
  CHECK(queue.waiting(1) == 11);
  CHECK(queue.waiting(2) == 2);
  CHECK(drain(queue) == "a\nb\nours\nc\nd\n");
}

TEST_CASE("a segment that was taken counts as waiting until it is done") {
  ConsoleQueue queue(false, 16);
  queue.push(2, false, "abc\n");
  ConsoleQueue::Segment segment = queue.pop();
  CHECK(queue.empty());
  CHECK(queue.waiting(2) == 4);
  queue.push(1, false, "a\n");
  queue.push(2, true, "b\n");
  queue.clear();
  CHECK(queue.waiting(1) == 0);
  CHECK(queue.waiting(2) == 4);
  queue.done(segment);
  CHECK(queue.waiting(2) == 0);
}

TEST_CASE("a holding queue becomes full and loses nothing") {
  ConsoleQueue queue(false, 64u << 10);
  const std::string lines = numbered(0, 9999);
  std::string all;
  while (!queue.full()) {
    queue.push(1, false, lines);
    all += lines;
  }
  CHECK(all.size() > ConsoleQueue::kHigh);
  CHECK_FALSE(queue.has_room());
  CHECK((drain(queue) == all));
  CHECK(queue.has_room());
}

TEST_CASE("a holding queue is bounded even when its sources do not stop") {
  ConsoleQueue queue(false, 64u << 10);
  const std::string line = std::string((1u << 20) - 1, 'x') + '\n';
  queue.push(1, true, "words of ours\n");
  for (int i = 0; i < 128; ++i) {
    queue.push(1, false, line);
    REQUIRE(queue.waiting(1) <= ConsoleQueue::kMost);
  }
  const std::string all = drain(queue);
  CHECK(all.starts_with("words of ours\nddplaunch: … 65 lines not shown; the files have them\nxxx"));
  CHECK(all.size() > 63u << 20);
}

TEST_CASE("notices of ddplaunch are bounded for any input of the nodes, and the latest are kept") {
  for (const bool skips : {false, true}) {
    ConsoleQueue queue(skips, 64u << 10);
    queue.push(1, false, "a worker's line\n");
    const std::string word = "gpu07: " + std::string(40'960, 'x') + '\n';
    int drops = 0;
    std::size_t most = 0;
    for (int i = 0; i < 1'000; ++i) {
      const std::size_t before = queue.waiting(2);
      queue.push(2, true, word);
      most = std::max(most, queue.waiting(2));
      if (queue.waiting(2) > before) continue;
      ++drops;  // the latest half stays, in whole lines
      REQUIRE(queue.waiting(2) <= ConsoleQueue::kMostOurs / 2);
      REQUIRE(queue.waiting(2) > ConsoleQueue::kMostOurs / 2 - word.size());
    }
    CHECK(drops == 3);
    CHECK(most <= ConsoleQueue::kMostOurs);
    queue.push(2, true, "ddplaunch: exit 1: rank 3 on gpu07 exited 1\n");
    const std::size_t kept = queue.waiting(2) / word.size();
    const std::string all = drain(queue);
    const std::size_t skipped = 1'000 - kept + (skips ? 1 : 0);  // includes the worker's line
    CHECK(all.find(skipped_text(skipped) + '\n') != std::string::npos);
    CHECK(all.ends_with("x\nddplaunch: exit 1: rank 3 on gpu07 exited 1\n"));
    CHECK((skips || all.starts_with("a worker's line\n")));
  }
}

TEST_CASE("notices that were shown no longer count towards the limit") {
  ConsoleQueue queue(false, 64u << 10);
  const std::string words = std::string((1u << 20) - 1, 'x') + '\n';
  for (int i = 0; i < 20; ++i) {
    queue.push(2, true, words);
    REQUIRE(drain(queue) == words);
  }
}

TEST_CASE("a skipping queue keeps the latest lines and reports the number of missing ones") {
  ConsoleQueue queue(true, 16u << 10);
  for (int i = 0; i < 150; ++i)
    queue.push(1, false, numbered(i * 1000, i * 1000 + 999));
  CHECK_FALSE(queue.full());
  CHECK(queue.waiting(1) <= ConsoleQueue::kSkipAt + 16'000);
  const std::string all = drain(queue);
  const std::string gap = "ddplaunch: … ";
  REQUIRE(all.substr(0, gap.size()) == gap);
  const std::size_t first_end = all.find('\n');
  std::string reported =
      all.substr(gap.size(), all.find(" lines not shown; the files have them") - gap.size());
  reported.erase(reported.find(','), 1);
  CHECK(all.find(gap, 1) == std::string::npos);
  CHECK(all.substr(first_end + 1) == numbered(std::stoi(reported), 149'999));
}

TEST_CASE("notices of ddplaunch are never skipped, and each gap is reported in its place") {
  ConsoleQueue queue(true, 16u << 10);
  const std::string flood(ConsoleQueue::kSkipAt - 1000, 'x');
  queue.push(1, false, "first\n");
  queue.push(2, true, "ddplaunch: word\n");
  queue.push(1, false, flood + "\n");
  queue.push(1, false, numbered(1, 300));
  CHECK(drain(queue) == skipped_text(1) + "\nddplaunch: word\n" + skipped_text(1) + "\n" + numbered(1, 300));
}

TEST_CASE("a growing gap is reported once") {
  ConsoleQueue queue(true, 16u << 10);
  for (int i = 0; i < 3; ++i)
    queue.push(1, false, std::string(ConsoleQueue::kSkipAt, '\n') + "end\n");
  const std::string all = drain(queue);
  const std::size_t reported = all.find('\n') + 1;
  const auto shown = static_cast<std::uint64_t>(
      std::count(all.begin() + static_cast<std::ptrdiff_t>(reported), all.end(), '\n'));
  CHECK(shown > 0);
  CHECK(all.substr(0, reported) == skipped_text(3 * (ConsoleQueue::kSkipAt + 1) - shown) + "\n");
}

TEST_CASE("numbers have thousands separators") {
  CHECK(skipped_text(1) == "ddplaunch: … 1 line not shown; the files have it");
  CHECK(skipped_text(999) == "ddplaunch: … 999 lines not shown; the files have them");
  CHECK(skipped_text(12'345) == "ddplaunch: … 12,345 lines not shown; the files have them");
  CHECK(skipped_text(1'234'567) == "ddplaunch: … 1,234,567 lines not shown; the files have them");
}

TEST_CASE("lines that are handed over keep their order and leave a reusable buffer") {
  ConsoleQueue queue(false, 1000);
  std::string much = numbered(0, 999);
  const std::string expected = "before\n" + much + "little\nafter\n";
  queue.push(1, false, "before\n");
  queue.hand_over(1, false, much);
  CHECK(much.empty());
  std::string little = "little\n";
  queue.hand_over(1, false, little);
  CHECK(little.empty());
  queue.push(1, false, "after\n");
  CHECK(queue.waiting(1) == expected.size());
  CHECK(drain(queue) == expected);
  much = numbered(0, 999);
  queue.hand_over(1, false, much);
  CHECK(much.capacity() > 1000);  // the memory of the finished lines
}

TEST_CASE("a skipping queue takes handed-over lines in pieces, so that it lags by at most one piece") {
  ConsoleQueue queue(true, 1000);
  std::string much = numbered(0, 999);
  queue.hand_over(1, false, much);
  while (!queue.empty()) {
    ConsoleQueue::Segment segment = queue.pop();
    CHECK(segment.bytes.size() <= 2000);
    CHECK(segment.bytes.back() == '\n');
    queue.done(segment);
  }
  CHECK(queue.waiting(1) == 0);
}
