#include "tests/net/secure_link_world.h"

namespace ddp::test {
namespace {

using rendezvous::JoinOutcome;

/// Sends `bytes` from one end to the other and gives what came.
std::string carried(GuardedPort& port, ByteStream& from, ByteStream& to, const std::string& bytes) {
  std::string got;
  bool sent = false;
  struct Task {
    static Awaitable<> send(ByteStream* stream, const std::string* what) {
      std::size_t done = 0;
      while (done < what->size()) {
        const auto [error, count] =
            co_await stream->write_some(asio::buffer(what->data() + done, what->size() - done));
        if (error) co_return;
        done += count;
      }
    }
    static Awaitable<> receive(ByteStream* stream, std::string* into, std::size_t wanted) {
      std::string buffer(100'000, '\0');
      while (into->size() < wanted) {
        const auto [error, count] = co_await stream->read_some(asio::buffer(buffer));
        if (error) co_return;
        into->append(buffer.data(), count);
      }
    }
  };
  bool received = false;
  asio::co_spawn(port.loop, Task::send(&from, &bytes), [&](const std::exception_ptr&) { sent = true; });
  asio::co_spawn(port.loop, Task::receive(&to, &got, bytes.size()),
                 [&](const std::exception_ptr&) { received = true; });
  REQUIRE(port.run_until([&] { return sent && received; }));
  return got;
}

std::string some_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  return bytes;
}

TEST_CASE("a node with the token joins and bytes go both ways") {
  GuardedPort port;
  const JoinOutcome outcome = port.join(port.joiner());
  CHECK(port.notes == std::vector<std::string>{});
  INFO(outcome.error.text);
  REQUIRE(outcome.stream);
  REQUIRE(port.run_until([&] { return port.joined.size() == 1; }));
  CHECK(port.identities[0].job == "job1");
  CHECK(port.identities[0].node == "gpu02");
  const std::string bytes = some_bytes(3'000'000);
  CHECK(carried(port, *outcome.stream, *port.joined[0], bytes) == bytes);
  CHECK(carried(port, *port.joined[0], *outcome.stream, bytes) == bytes);
  CHECK(port.notes.empty());
}

}  // namespace
}  // namespace ddp::test
