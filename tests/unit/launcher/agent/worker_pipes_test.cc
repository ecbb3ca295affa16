#include "launcher/agent/worker_pipes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/run_until.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

struct Ends {
  UniqueFd read;
  UniqueFd write;
};

Ends make_pipe() {
  int fds[2];
  REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

/// Keeps the data that was read; the test sets its room.
class Collector final : public OutputSink {
 public:
  std::size_t output_room(std::uint8_t stream) const override { return room[stream - 1u]; }
  std::span<char> output_space(std::size_t size) override {
    buffer_.resize(std::max(buffer_.size(), size));
    return {buffer_.data(), size};
  }
  void worker_output(std::uint32_t rank, std::uint8_t stream, std::span<const char> bytes) override {
    if (bytes.empty()) ++ends[{rank, stream}];
    got[{rank, stream}].append(bytes.data(), bytes.size());
    std::size_t& left = room[stream - 1u];
    if (left != kAll) left -= bytes.size();
    if (on_output) on_output(stream);
  }

  using Key = std::pair<std::uint32_t, int>;
  std::array<std::size_t, 2> room{kAll, kAll};
  std::map<Key, std::string> got;
  std::map<Key, int> ends;
  std::function<void(std::uint8_t stream)> on_output;

 private:
  std::vector<char> buffer_;
};

void put(const UniqueFd& fd, std::string_view bytes) {
  REQUIRE(::write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
}

struct Bench {
  asio::io_context loop;
  Collector sink;
  WorkerPipes pipes{loop.get_executor(), sink};
  std::map<Collector::Key, UniqueFd> writers;
  bool closed = false;

  void add(std::uint32_t rank) {
    Ends out = make_pipe();
    Ends err = make_pipe();
    pipes.add(rank, std::move(out.read), std::move(err.read));
    writers[{rank, 1}] = std::move(out.write);
    writers[{rank, 2}] = std::move(err.write);
  }
  template <class Condition>
  bool run_until(const Condition& holds) {
    return test::run_until(loop, holds);
  }
  /// Ends every lane: no pipe is open any more.
  void finish() {
    writers.clear();
    asio::co_spawn(loop, pipes.closed(), [this](const std::exception_ptr&) { closed = true; });
    CHECK(run_until([this] { return closed; }));
  }
};

TEST_CASE("a single line arrives, and the end of each stream once") {
  Bench bench;
  bench.add(4);
  put(bench.writers[{4, 1}], "hello\n");
  CHECK(bench.run_until([&] { return bench.sink.got[{4, 1}] == "hello\n"; }));
  put(bench.writers[{4, 2}], "oh\n");
  CHECK(bench.run_until([&] { return bench.sink.got[{4, 2}] == "oh\n"; }));
  bench.finish();
  CHECK(bench.sink.ends[{4, 1}] == 1);
  CHECK(bench.sink.ends[{4, 2}] == 1);
}

TEST_CASE("stdout without credit does not block stderr and loses nothing") {
  Bench bench;
  bench.sink.room[0] = 5;
  bench.add(0);
  put(bench.writers[{0, 1}], "stdout that waits\n");
  put(bench.writers[{0, 2}], "last line\n");
  CHECK(bench.run_until([&] { return bench.sink.got[{0, 2}] == "last line\n"; }));
  CHECK(bench.run_until([&] { return bench.sink.room[0] == 0; }));
  CHECK(bench.sink.got[{0, 1}] == "stdou");
  bench.sink.room[0] = kAll;
  bench.pipes.resume();
  CHECK(bench.run_until([&] { return bench.sink.got[{0, 1}] == "stdout that waits\n"; }));
  bench.finish();
}

TEST_CASE("a quiet rank's line arrives while seven busy ranks never stop") {
  Bench bench;
  for (std::uint32_t rank = 0; rank < 8; ++rank)
    bench.add(rank);
  // These pipes are refilled as soon as they are read, and the window is small and returns in pieces.
  const std::string much(32u << 10, 'x');
  bench.sink.room[0] = 64u << 10;
  for (std::uint32_t rank = 0; rank < 7; ++rank)
    ::fcntl(bench.writers[{rank, 1}].get(), F_SETFL, O_NONBLOCK);
  std::size_t rounds = 0;
  bench.sink.on_output = [&](std::uint8_t) {
    for (std::uint32_t rank = 0; rank < 7; ++rank)
      while (::write(bench.writers[{rank, 1}].get(), much.data(), much.size()) > 0) {
      }
    if (bench.sink.room[0] != 0) return;
    bench.sink.room[0] = 16u << 10;
    if (++rounds == 50) put(bench.writers[{7, 1}], "me too\n");
  };
  put(bench.writers[{0, 1}], "go\n");
  CHECK(bench.run_until([&] { return !bench.sink.got[{7, 1}].empty(); }));
  CHECK(rounds < 60);
  std::size_t least = kAll;
  std::size_t most = 0;
  for (std::uint32_t rank = 0; rank < 7; ++rank) {
    least = std::min(least, bench.sink.got[{rank, 1}].size());
    most = std::max(most, bench.sink.got[{rank, 1}].size());
  }
  CHECK(least > 0);
  CHECK(most <= 2 * least + (64u << 10));
  bench.sink.on_output = nullptr;
  bench.sink.room[0] = kAll;
  bench.pipes.resume();
  bench.finish();
}

TEST_CASE("bytes of many ranks arrive whole and in order") {
  Bench bench;
  constexpr std::uint32_t kRanks = 12;
  std::array<std::string, kRanks> expected;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    bench.add(rank);
    for (int i = 0; i < 5'000; ++i)
      expected[rank] += "rank " + std::to_string(rank) + " line " + std::to_string(i) + "\n";
  }
  std::thread writer([&] {
    for (std::size_t at = 0; at < expected[kRanks - 1].size(); at += 1000) {
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        const std::string_view piece =
            std::string_view(expected[rank]).substr(std::min(at, expected[rank].size()));
        (void)!::write(bench.writers[{rank, 1}].get(), piece.data(),
                       std::min<std::size_t>(piece.size(), 1000));
      }
    }
  });
  const auto all = [&] {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      if (bench.sink.got[{rank, 1}].size() < expected[rank].size()) return false;
    }
    return true;
  };
  CHECK(bench.run_until(all));
  writer.join();
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    CHECK((bench.sink.got[{rank, 1}] == expected[rank]));
  bench.finish();
}

TEST_CASE("a pipe that a grandchild holds open is abandoned once it is empty, not before") {
  Bench bench;
  bench.sink.room[0] = 0;
  bench.add(0);
  put(bench.writers[{0, 1}], "of the leader\n");
  bool drained = false;
  asio::co_spawn(bench.loop, bench.pipes.drained(0), [&](const std::exception_ptr&) { drained = true; });
  // Reading pauses for longer than the quiet time; the leader's output must not be lost.
  const auto later = Clock::now() + std::chrono::milliseconds(500);
  bench.run_until([&] { return Clock::now() >= later; });
  CHECK_FALSE(drained);
  bench.sink.room[0] = kAll;
  bench.pipes.resume();
  CHECK(bench.run_until([&] { return drained; }));
  CHECK(bench.sink.got[{0, 1}] == "of the leader\n");
  CHECK(bench.sink.ends[{0, 1}] == 1);
  bench.finish();  // the writers were open up to here
}

TEST_CASE("a stop does not wait for a blocked reader: the leader's output is read without credit") {
  Bench bench;
  bench.sink.room = {0, 0};
  bench.add(0);
  put(bench.writers[{0, 1}], "of the leader\n");
  put(bench.writers[{0, 2}], "its last line\n");
  bench.pipes.shorten_wait();
  bool drained = false;
  asio::co_spawn(bench.loop, bench.pipes.drained(0), [&](const std::exception_ptr&) { drained = true; });
  CHECK(bench.run_until([&] { return drained; }));
  CHECK(bench.sink.got[{0, 1}] == "of the leader\n");
  CHECK(bench.sink.got[{0, 2}] == "its last line\n");
  bench.finish();
}

TEST_CASE("a grandchild that never stops writing is abandoned once the leader's output is read") {
  ::signal(SIGPIPE, SIG_IGN);
  Bench bench;
  bench.add(0);
  put(bench.writers[{0, 1}], "of the leader\n");
  bench.sink.on_output = [&](std::uint8_t stream) {
    if (stream == 1) (void)!::write(bench.writers[{0, 1}].get(), "noise\n", 6);
  };
  bool drained = false;
  asio::co_spawn(bench.loop, bench.pipes.drained(0), [&](const std::exception_ptr&) { drained = true; });
  CHECK(bench.run_until([&] { return drained; }));
  CHECK(bench.sink.got[{0, 1}].starts_with("of the leader\nnoise\n"));
  CHECK(bench.sink.ends[{0, 1}] == 1);
  bench.sink.on_output = nullptr;
  bench.finish();
}

TEST_CASE("without a free descriptor to watch pipes, the pipes are read all the same") {
  asio::io_context loop;
  const asio::steady_timer timer(loop);  // the loop's own descriptors exist already, as in an agent
  Collector sink;
  Ends out = make_pipe();
  Ends err = make_pipe();
  std::vector<UniqueFd> hoard;
  for (;;) {
    UniqueFd one(::fcntl(out.read.get(), F_DUPFD_CLOEXEC, 0));
    if (!one) break;
    hoard.push_back(std::move(one));
  }
  WorkerPipes pipes(loop.get_executor(), sink);
  hoard.clear();
  pipes.add(0, std::move(out.read), std::move(err.read));
  put(out.write, "blind\n");
  put(err.write, "both\n");
  out.write.reset();
  err.write.reset();
  bool closed = false;
  asio::co_spawn(loop, pipes.closed(), [&](const std::exception_ptr&) { closed = true; });
  loop.run_for(std::chrono::seconds(10));
  CHECK(closed);
  CHECK(sink.got[{0, 1}] == "blind\n");
  CHECK(sink.got[{0, 2}] == "both\n");
}

/// Workers are the read ends of pipes that the test reads.
struct StdinBench {
  asio::io_context loop;
  bool may_write = true;
  std::size_t taken = 0;
  std::vector<std::uint64_t> positions;  ///< how far each ended worker had read
  UniqueFd reader;
  WorkerStdin input{loop.get_executor(),
                    [this](const rendezvous::StdinTaken& message) {
                      taken += message.bytes;
                      if (message.ended) positions.push_back(message.read);
                    },
                    [this] { return may_write; }};

  void run() {
    loop.restart();
    loop.poll();
  }
  void start_worker() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    input.attach(UniqueFd(ends[1]));
    input.resume();
    run();
  }
  void add(std::string_view bytes) {
    input.add(bytes);
    run();
  }
  void end_worker() {
    input.detach();
    run();
    reader.reset();
  }
  /// Returns up to `size` bytes; empty at the end of the stream; "-" if nothing is there.
  std::string read(std::size_t size) {
    std::string bytes(size, '\0');
    ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    const ssize_t count = ::read(reader.get(), bytes.data(), size);
    run();
    return count < 0 ? "-" : bytes.substr(0, static_cast<std::size_t>(count));
  }
};

TEST_CASE("bytes reach the worker in order, and the end of the stream follows them") {
  StdinBench bench;
  bench.start_worker();
  bench.add("one");
  bench.add("two");
  CHECK(bench.taken == 6);
  CHECK(bench.read(10) == "onetwo");
  CHECK(bench.read(10) == "-");
  bench.add("three");
  bench.add("");
  CHECK(bench.read(10) == "three");
  CHECK(bench.read(10) == "");
}

TEST_CASE("bytes wait while a worker may still be started to read them") {
  StdinBench bench;
  bench.may_write = false;
  bench.add("early");
  bench.add("");
  CHECK(bench.taken == 0);
  bench.may_write = true;
  bench.start_worker();
  CHECK(bench.taken == 5);
  CHECK(bench.read(10) == "early");
  CHECK(bench.read(10) == "");
}

TEST_CASE("bytes that no worker reads count as taken") {
  StdinBench bench;
  bench.add("nobody");
  CHECK(bench.taken == 6);
  bench.start_worker();
  bench.add("lost");
  bench.reader.reset();  // the worker closes its stdin
  bench.add("more");
  bench.add("and more");
  CHECK(bench.taken == 6 + 4 + 4 + 8);
}

TEST_CASE("the position of an ended worker is what it has read, and a restarted worker continues there") {
  StdinBench bench;
  bench.start_worker();
  bench.add("0123456789");
  CHECK(bench.read(4) == "0123");
  bench.end_worker();
  CHECK(bench.positions == std::vector<std::uint64_t>{4});
  bench.may_write = false;
  bench.add("abc");
  bench.may_write = true;
  bench.start_worker();
  CHECK(bench.read(2) == "ab");
  bench.end_worker();
  CHECK(bench.positions == std::vector<std::uint64_t>{4, 12});
}

TEST_CASE("the position is known after the end of the stream, and each worker reports once") {
  StdinBench bench;
  bench.start_worker();
  bench.add("0123");
  bench.add("");
  CHECK(bench.read(3) == "012");
  bench.end_worker();
  CHECK(bench.positions == std::vector<std::uint64_t>{3});
  bench.end_worker();
  CHECK(bench.positions.size() == 1);
  bench.start_worker();  // the end of the stream reaches this worker as well
  CHECK(bench.read(3) == "");
}

TEST_CASE("a worker that does not read holds back only its own bytes") {
  StdinBench bench;
  bench.start_worker();
  const std::string much(200'000, 'x');  // more than a pipe holds
  bench.add(much);
  bench.add("next");
  CHECK(bench.taken == 0);
  bench.end_worker();
  CHECK(bench.taken == much.size() + 4);
  bench.start_worker();
  bench.add("mine");
  CHECK(bench.read(10) == "mine");
}

TEST_CASE("the abort of the former worker's write does not close the pipe of the next") {
  StdinBench bench;
  bench.start_worker();
  bench.add(std::string(200'000, 'x'));
  bench.input.detach();
  bench.start_worker();  // before the loop has run the abort
  bench.add("mine");
  CHECK(bench.read(10) == "mine");
}

}  // namespace
}  // namespace ddp::launcher
