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
    for (int i = 0; i < 20'000; ++i)
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

}  // namespace
}  // namespace ddp::launcher
