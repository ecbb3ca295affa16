#include "rendezvous/link/connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/unique_fd.h"
#include "rendezvous/protocol/codec.h"
#include "tests/support/catch.h"
#include "tests/support/run_until.h"

namespace ddp::rendezvous {
namespace {

using Socket = asio::local::stream_protocol::socket;
constexpr std::size_t kData = 60'000;
constexpr std::uint32_t kFrames = 100;  ///< far more than the socket's buffer holds

/// The connections of an agent and of the master over a pair of sockets, both borrowed.
struct Link {
  asio::io_context loop;
  Socket near{loop};
  Socket far{loop};
  std::unique_ptr<Connection> agent;
  std::unique_ptr<Connection> master;
  std::vector<std::string> got;  ///< "R7" for output of rank 7, else the message's name
  bool writer_done = false;
  bool reader_done = false;

  Link() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    near.assign(asio::local::stream_protocol(), ends[0]);
    far.assign(asio::local::stream_protocol(), ends[1]);
    agent = std::make_unique<Connection>(loop.get_executor(), stream_over(near));
    master = std::make_unique<Connection>(loop.get_executor(), stream_over(far));
    asio::co_spawn(loop, agent->write_all(), [this](const std::exception_ptr&) { writer_done = true; });
  }
  void queue(std::uint32_t rank) {
    const auto space = agent->output_space(kData);
    std::memset(space.data(), static_cast<int>('a' + rank % 26), space.size());
    agent->send_output({0, rank, 1, 7, {space.data(), space.size()}});
  }
  void start_reading() {
    asio::co_spawn(loop, read(this), [this](const std::exception_ptr&) { reader_done = true; });
  }
  static Awaitable<> read(Link* link) {
    Result<> good;
    while (good) {
      for (;;) {
        auto message = link->master->next();
        if (!message || !*message) break;
        if (const auto* output = std::get_if<Output>(&**message)) {
          const char expected = static_cast<char>('a' + output->rank % 26);
          const bool whole =
              output->data.size() == kData && std::all_of(output->data.begin(), output->data.end(),
                                                          [expected](char c) { return c == expected; });
          link->got.push_back(whole ? "R" + std::to_string(output->rank) : "damaged");
        } else {
          link->got.emplace_back(message_name(**message));
        }
      }
      good = co_await link->master->read_more();
    }
  }
  template <class Condition>
  bool run_until(const Condition& holds) {
    return test::run_until(loop, holds);
  }
  void finish() {
    agent->close();
    master->close();
    CHECK(run_until([this] { return writer_done; }));
  }
};

TEST_CASE("control frames overtake queued output, and cut no frame") {
  Link link;
  for (std::uint32_t rank = 0; rank < kFrames; ++rank)
    link.queue(rank);
  link.loop.poll();  // the socket is full
  link.agent->send(Notice{"first", false});
  link.agent->send(Pong{1, 2});
  link.start_reading();
  REQUIRE(link.run_until([&] { return link.got.size() == kFrames + 2; }));
  const auto notice = std::find(link.got.begin(), link.got.end(), "Notice");
  const auto place = static_cast<std::size_t>(notice - link.got.begin());
  CHECK(place < kFrames / 5);  // the socket's earlier data, and the piece under way
  CHECK(link.got[place + 1] == "Pong");
  std::vector<std::string> output = link.got;
  output.erase(output.begin() + static_cast<std::ptrdiff_t>(place),
               output.begin() + static_cast<std::ptrdiff_t>(place) + 2);
  for (std::uint32_t rank = 0; rank < kFrames; ++rank)
    CHECK(output[rank] == "R" + std::to_string(rank));
  link.finish();
}

TEST_CASE("flushed() waits until all bytes are handed over") {
  Link link;
  for (std::uint32_t rank = 0; rank < kFrames; ++rank)
    link.queue(rank);
  bool flushed = false;
  asio::co_spawn(link.loop, link.agent->flushed(), [&](const std::exception_ptr&) { flushed = true; });
  link.loop.poll();
  CHECK_FALSE(flushed);
  link.start_reading();
  CHECK(link.run_until([&] { return flushed; }));
  CHECK(link.run_until([&] { return link.got.size() == kFrames; }));
  link.finish();
}

TEST_CASE("a remote side that closes ends the writer and its waiters, and nothing more is queued") {
  Link link;
  for (std::uint32_t rank = 0; rank < kFrames; ++rank)
    link.queue(rank);
  bool flushed = false;
  asio::co_spawn(link.loop, link.agent->flushed(), [&](const std::exception_ptr&) { flushed = true; });
  link.loop.poll();
  link.master->close();
  CHECK(link.run_until([&] { return link.writer_done && flushed; }));
  const auto space = link.agent->output_space(kData);
  link.queue(1);
  CHECK(link.agent->output_space(kData).data() == space.data());  // the memory does not grow
  link.finish();
}

}  // namespace
}  // namespace ddp::rendezvous
