// A guarded link behind the channel interface of the master.
#include "launcher/links/join_transport.h"

#include <filesystem>

#include "tests/net/secure_link_world.h"

namespace ddp::test {
namespace {

using launcher::SecureChannel;

constexpr std::size_t kMany = 5'000'000;

/// A node's stream, and the master's channel over the other end of it.
struct Linked {
  GuardedPort world;
  std::unique_ptr<ByteStream> node;
  std::unique_ptr<SecureChannel> channel;
  std::unique_ptr<ByteStream> master;  ///< the channel's stream
  std::optional<remote::ChannelEnd> end;

  Linked() {
    rendezvous::JoinOutcome outcome = world.join(world.joiner());
    REQUIRE(outcome.stream);
    REQUIRE(world.run_until([&] { return world.joined.size() == 1; }));
    node = std::move(outcome.stream);
    open(std::move(world.joined[0]));
    world.joined.clear();
  }
  explicit Linked(std::unique_ptr<ByteStream> stream) { open(std::move(stream)); }
  ~Linked() {
    if (node) node->close();
    master.reset();
    channel.reset();
    world.loop.restart();
    world.loop.poll();
  }
  void open(std::unique_ptr<ByteStream> stream) {
    channel = std::make_unique<SecureChannel>(world.loop.get_executor(), std::move(stream), "127.0.0.1");
    master = channel->stream();
  }
  void await_end() { world.run(end_of(this)); }
  static Awaitable<> end_of(Linked* self) {
    remote::ChannelEnd end_seen = co_await self->channel->end();
    self->end = std::move(end_seen);
  }
};

/// Runs the loop until bytes of `talk` were sent and no further byte is accepted.
void run_until_blocked(GuardedPort& world, const Talk& talk) {
  REQUIRE(world.run_until([&] { return talk.sent > 0; }));
  for (std::size_t before = 0; before != talk.sent;) {
    before = talk.sent;
    world.loop.restart();
    world.loop.run_for(200ms);
  }
}

/// Returns the number of open local sockets of this process.
std::size_t local_sockets() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int domain = 0;
    socklen_t size = sizeof domain;
    const int fd = std::stoi(entry.path().filename().string());
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX) ++count;
  }
  return count;
}

/// Fails like a socket that the remote machine resets.
class BrokenStream final : public ByteStream {
 public:
  Awaitable<Transferred> read_some(asio::mutable_buffer) override {
    co_return Transferred{error_code(ECONNRESET, boost::system::system_category()), 0};
  }
  Awaitable<Transferred> write_some(asio::const_buffer) override {
    co_return Transferred{error_code(EPIPE, boost::system::system_category()), 0};
  }
  void close() override {}
};

TEST_CASE("a channel over a guarded link carries bytes both ways at once, without a local socket") {
  const std::size_t before = local_sockets();
  Linked link;
  CHECK(!link.channel->socket().is_open());
  const std::string up = some_bytes(kMany, 1);
  const std::string down = some_bytes(kMany - 7, 2);
  Talk node;
  Talk master;
  link.world.run(Talk::say(&node, link.node.get(), up));
  link.world.run(Talk::hear(&node, link.node.get(), down.size()));
  link.world.run(Talk::say(&master, link.master.get(), down));
  link.world.run(Talk::hear(&master, link.master.get(), up.size()));
  REQUIRE(link.world.run_until(
      [&] { return master.heard.size() >= up.size() && node.heard.size() >= down.size(); }));
  CHECK(master.heard == up);
  CHECK(node.heard == down);
  CHECK(link.channel->address() == "127.0.0.1");
  CHECK(local_sockets() == before);
}

TEST_CASE("a channel whose owner does not read blocks the remote side and loses nothing") {
  Linked link;
  const std::string up = some_bytes(60'000'000, 3);
  Talk node;
  link.world.run(Talk::say(&node, link.node.get(), up));
  run_until_blocked(link.world, node);
  REQUIRE(node.sent < up.size());
  Talk master;
  link.world.run(Talk::hear(&master, link.master.get(), up.size()));
  REQUIRE(link.world.run_until([&] { return master.heard.size() >= up.size(); }));
  CHECK(master.heard == up);
}

TEST_CASE("the remote side's end closes the channel after its last bytes") {
  Linked link;
  Talk node;
  const bool read_later = GENERATE(false, true);
  if (read_later) link.channel->line().lock()->watch();
  link.world.run(Talk::say(&node, link.node.get(), "the last bytes"));
  REQUIRE(link.world.run_until([&] { return node.sent == 14; }));
  link.node->close();
  link.await_end();
  Talk master;
  // With watch() the end is noticed although nobody reads.
  if (read_later) REQUIRE(link.world.run_until([&] { return link.end.has_value(); }));
  link.world.run(Talk::hear(&master, link.master.get(), 100));
  REQUIRE(link.world.run_until([&] { return master.end && link.end; }));
  CHECK(!link.end->broken);
  CHECK(!link.end->status);
  CHECK(master.heard == "the last bytes");
  CHECK(*master.end == asio::error::eof);
  Talk errors;
  const auto stderr_there = stream_over(link.channel->errors());
  link.world.run(Talk::hear(&errors, stderr_there.get(), 1));
  REQUIRE(link.world.run_until([&] { return errors.end.has_value(); }));
  CHECK(*errors.end == asio::error::bad_descriptor);
}

TEST_CASE("a broken link reports its reason") {
  Linked link(std::make_unique<BrokenStream>());
  link.channel->line().lock()->watch();
  link.await_end();
  REQUIRE(link.world.run_until([&] { return link.end.has_value(); }));
  REQUIRE(link.end->broken);
  CHECK(link.end->broken->code == ErrorCode::kLinkLost);
  CHECK(link.end->broken->text == "Connection reset by peer");
}

TEST_CASE("bytes written before the channel was destroyed are sent, then the remote side sees the end") {
  Linked link;
  const std::string down = some_bytes(150'000, 4);
  Talk master;
  Talk node;
  link.world.run(Talk::say(&master, link.master.get(), down));
  link.world.run(Talk::hear(&node, link.node.get(), down.size() + 1));
  REQUIRE(link.world.run_until([&] { return master.sent == down.size(); }));
  link.master.reset();
  link.channel.reset();
  REQUIRE(link.world.run_until([&] { return node.end.has_value(); }));
  CHECK(node.heard == down);
  CHECK(*node.end == asio::error::eof);
}

TEST_CASE("a remote side that reads nothing does not delay the end of a channel") {
  Linked link;
  const std::string down = some_bytes(60'000'000, 5);
  Talk master;
  link.world.run(Talk::say(&master, link.master.get(), down));
  run_until_blocked(link.world, master);
  REQUIRE(master.sent < down.size());
  const std::weak_ptr<launcher::SecureLine> line = link.channel->line();
  const auto begin = Clock::now();
  link.channel.reset();
  REQUIRE(link.world.run_until([&] { return static_cast<bool>(master.failed); }));
  link.master.reset();
  REQUIRE(link.world.run_until([&] { return line.expired(); }));
  CHECK(Clock::now() - begin < 4500ms);  // the silence of 5 s is not waited for
}

TEST_CASE("a channel can be closed with a reason, whether its stream is being read or was handed over") {
  const bool is_read = GENERATE(true, false);
  CAPTURE(is_read);
  Linked link;
  Talk node;
  Talk master;
  link.world.run(Talk::hear(&node, link.node.get(), 1));
  const auto line = link.channel->line().lock();
  REQUIRE(line);
  if (is_read)
    link.world.run(Talk::hear(&master, link.master.get(), 1));
  else
    line->watch();
  link.await_end();
  bool end_seen = false;
  line->on_end([&end_seen] { end_seen = true; });
  line->cut(Error{ErrorCode::kLinkLost, "another one came in its place", 0});
  REQUIRE(link.world.run_until([&] { return link.end && node.end && (master.end || !is_read); }));
  if (is_read) CHECK(*master.end == asio::error::eof);
  CHECK(end_seen);
  CHECK(line->ended());
  REQUIRE(link.end->broken);
  CHECK(link.end->broken->text == "another one came in its place");
}

}  // namespace
}  // namespace ddp::test
