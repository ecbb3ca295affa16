// Peers that follow the protocol: the data of a guarded link, and the error that a refused node gets.
#include "rendezvous/link/connection.h"
#include "rendezvous/secure/secure_stream.h"
#include "tests/net/secure_link_world.h"

namespace ddp::test {
namespace {

using namespace rendezvous;

Awaitable<> send_all(ByteStream* stream, std::string_view bytes, bool* done) {
  while (!bytes.empty()) {
    const auto [error, count] = co_await stream->write_some(asio::buffer(bytes.data(), bytes.size()));
    if (error) break;
    bytes.remove_prefix(count);
  }
  *done = true;
}

/// Reads until `wanted` bytes or an error, which goes to `end`.
Awaitable<> receive_all(ByteStream* stream, std::string* into, std::size_t wanted,
                        std::optional<error_code>* end) {
  std::string buffer(100'000, '\0');
  error_code error;
  while (!error && into->size() < wanted) {
    const auto [failed, count] = co_await stream->read_some(asio::buffer(buffer));
    error = failed;
    into->append(buffer.data(), count);
  }
  *end = error;
}

void spawn(GuardedPort& port, Awaitable<> task) {
  asio::co_spawn(port.loop, std::move(task), [](const std::exception_ptr& failure) {
    if (failure) std::rethrow_exception(failure);
  });
}

/// Returns what arrives when `bytes` go from one end to the other.
std::string carried(GuardedPort& port, ByteStream& from, ByteStream& to, const std::string& bytes) {
  std::string got;
  bool sent = false;
  std::optional<error_code> end;
  spawn(port, send_all(&from, bytes, &sent));
  spawn(port, receive_all(&to, &got, bytes.size(), &end));
  REQUIRE(port.run_until([&] { return sent && end; }));
  return got;
}

std::string some_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  return bytes;
}

/// Both ends of a joined pair.
struct Pair {
  std::unique_ptr<ByteStream> node;
  ByteStream* master = nullptr;
  explicit Pair(GuardedPort& port) {
    JoinOutcome outcome = port.join(port.joiner());
    INFO(outcome.error.text);
    REQUIRE(outcome.stream);
    REQUIRE(port.run_until([&] { return port.joined.size() == 1; }));
    node = std::move(outcome.stream);
    master = port.joined[0].get();
  }
};

TEST_CASE("a node with the token joins and bytes go both ways at once") {
  GuardedPort port;
  const Pair pair(port);
  CHECK(port.identities[0].job == "job1");
  CHECK(port.identities[0].node == "gpu02");
  CHECK(port.identities[0].role == LinkRole::kAgent);
  const std::string up = some_bytes(3'000'000);
  const std::string down = some_bytes(2'000'001);
  std::string got_up;
  std::string got_down;
  bool sent_up = false;
  bool sent_down = false;
  std::optional<error_code> up_end;
  std::optional<error_code> down_end;
  spawn(port, send_all(pair.node.get(), up, &sent_up));
  spawn(port, send_all(pair.master, down, &sent_down));
  spawn(port, receive_all(pair.master, &got_up, up.size(), &up_end));
  spawn(port, receive_all(pair.node.get(), &got_down, down.size(), &down_end));
  REQUIRE(port.run_until([&] { return sent_up && sent_down && up_end && down_end; }));
  CHECK(got_up == up);
  CHECK(got_down == down);
  CHECK(port.notes.empty());
  CHECK(port.acceptor->waiting() == 0);
}

TEST_CASE("the frames of the control link go over the secure link") {
  GuardedPort port;
  Pair pair(port);
  Connection agent(port.loop.get_executor(), std::move(pair.node));
  Connection master(port.loop.get_executor(), std::move(port.joined[0]));
  bool wrote = false;
  std::optional<std::string> got;
  struct Task {
    static Awaitable<> write(Connection* link, bool* done) {
      co_await link->write_all();
      *done = true;
    }
    static Awaitable<> read(Connection* link, std::optional<std::string>* got) {
      for (;;) {
        auto message = link->next();
        if (!message) break;
        if (*message) {
          *got = message_name(**message);
          co_return;
        }
        const auto more = co_await link->read_more();
        if (!more) break;
      }
      *got = "nothing";
    }
  };
  spawn(port, Task::write(&agent, &wrote));
  spawn(port, Task::read(&master, &got));
  agent.send(Leave{});
  REQUIRE(port.run_until([&] { return got.has_value(); }));
  CHECK(*got == message_name(Message(Leave{})));
  agent.close();
  master.close();
  REQUIRE(port.run_until([&] { return wrote; }));
}

TEST_CASE("the sending key is renewed and nothing is lost") {
  GuardedPort port;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const LinkIdentity who{LinkRole::kAgent, "job1", "gpu02", {}};
  const Secret token{std::string_view(kToken)};
  const auto make = [&](SecureStream::TlsRole end, int fd) {
    const auto link = link_key(token, who.role, who.job, who.node).value();
    return SecureStream::make(port.context, end,
                              {asio::posix::stream_descriptor(port.loop, fd),
                               who,
                               session_key(link, who).value(),
                               {},
                               100'000})
        .value();
  };
  const auto server = make(SecureStream::TlsRole::kServer, ends[0]);
  const auto client = make(SecureStream::TlsRole::kClient, ends[1]);
  struct Task {
    static Awaitable<> shake(SecureStream* stream, std::optional<HandshakeEnd::Kind>* kind) {
      *kind = (co_await stream->handshake()).kind;
    }
  };
  std::optional<HandshakeEnd::Kind> at_server;
  std::optional<HandshakeEnd::Kind> at_client;
  spawn(port, Task::shake(server.get(), &at_server));
  spawn(port, Task::shake(client.get(), &at_client));
  REQUIRE(port.run_until([&] { return at_server && at_client; }));
  CHECK(*at_server == HandshakeEnd::Kind::kDone);
  CHECK(*at_client == HandshakeEnd::Kind::kDone);
  const std::string bytes = some_bytes(2'000'000);  // 20 keys
  CHECK(carried(port, *server, *client, bytes) == bytes);
  // The same while the remote side renews its own keys.
  std::string down;
  bool sent = false;
  std::optional<error_code> end;
  spawn(port, send_all(server.get(), bytes, &sent));
  spawn(port, receive_all(client.get(), &down, bytes.size(), &end));
  CHECK(carried(port, *client, *server, bytes) == bytes);
  REQUIRE(port.run_until([&] { return sent && end; }));
  CHECK(down == bytes);
}

TEST_CASE("the end of the link is reported, with a goodbye or without") {
  GuardedPort port;
  Pair pair(port);
  std::string got;
  std::optional<error_code> end;
  spawn(port, receive_all(pair.master, &got, 1, &end));
  pair.node->close();
  char record = 0;
  CHECK(::recv(dynamic_cast<SecureStream&>(*pair.master).native_socket(), &record, 1, MSG_PEEK) == 1);
  CHECK(record == 23);  // the goodbye is an encrypted record
  REQUIRE(port.run_until([&] { return end.has_value(); }));
  CHECK(*end == asio::error::eof);

  std::optional<error_code> own;
  GuardedPort other;
  Pair second(other);
  spawn(other, receive_all(second.node.get(), &got, 1, &own));
  other.loop.poll();
  second.node->close();
  REQUIRE(other.run_until([&] { return own.has_value(); }));
  CHECK(*own == asio::error::operation_aborted);
}

TEST_CASE("another token is named on both sides") {
  GuardedPort port;
  const std::string other = "fedcba9876543210fedcba9876543210";
  const JoinOutcome outcome = port.join(port.joiner(other));
  CHECK_FALSE(outcome.stream);
  CHECK_FALSE(outcome.try_again);
  CHECK(outcome.error.code == ErrorCode::kUnreachable);
  CHECK(outcome.error.text ==
        "the token differs: gpu01 (127.0.0.1) has another token than this node, which uses the file "
        "/run/token (check " +
            token_check(Secret{std::string_view(other)}) +
            "). The other side's log names the source and the check of its token. Give both sides the same "
            "token: the same DDPLAUNCH_TOKEN, or the same --token-file");
  REQUIRE(port.run_until([&] { return !port.notes.empty(); }));
  CHECK(port.notes[0] ==
        "refused 127.0.0.1 (node gpu02, job job1): its token differs from ours (DDPLAUNCH_TOKEN, check " +
            token_check(Secret{std::string_view(kToken)}) + ")");
  CHECK(port.joined.empty());
  CHECK(port.acceptor->waiting() == 0);
}

TEST_CASE("another job or role is named on both sides") {
  GuardedPort port;
  const JoinOutcome job = port.join(port.joiner(kToken, "job2"));
  CHECK_FALSE(job.try_again);
  CHECK(job.error.text ==
        "gpu01 (127.0.0.1) does not run job job2: the address is another job's, or this node has "
        "another --job-id. Use the same --job-id on all nodes, and the MASTER_ADDR and MASTER_PORT "
        "of this job");
  const JoinOutcome role = port.join(port.joiner(kToken, "job1", LinkRole::kMaster));
  CHECK(role.error.text ==
        "gpu01 (127.0.0.1) is ddplaunch, but expects another kind of peer: the master of a job expects its "
        "nodes, a daemon expects masters. Check the address and the port");
  REQUIRE(port.run_until([&] { return port.notes.size() == 2; }));
  CHECK(port.notes[0] ==
        "127.0.0.1, which claims to be agent gpu02 of job job2, connected to the control port, where another "
        "job runs; refused");
  CHECK(port.notes[1] ==
        "127.0.0.1, which claims to be master gpu02 of job job1, has the wrong role for the control port; "
        "refused");
}

TEST_CASE("a key made for one node or role fits no other") {
  GuardedPort port;
  JoinAs as = port.joiner();
  as.node = "gpu03";  // with gpu02's key
  CHECK(port.join(as).error.text.starts_with("the token differs: "));
  JoinAs master = port.joiner(kToken, "job1", LinkRole::kMaster);
  master.role = LinkRole::kAgent;
  CHECK(port.join(master).error.text.starts_with("the token differs: "));
  CHECK(port.joined.empty());
}

TEST_CASE("a node waits for a master that starts later") {
  GuardedPort port;
  RawPort late;
  const JoinAs as = port.joiner();
  struct Task {
    static Awaitable<> join(std::shared_ptr<const SecureContext> context, std::uint16_t at, const JoinAs* who,
                            Clock::time_point until,
                            std::optional<Result<std::unique_ptr<ByteStream>>>* outcome) {
      const Resolve by_address = address_only;
      *outcome = co_await secure_join(context, by_address, "127.0.0.1", at, *who, until);
    }
  };
  std::optional<Result<std::unique_ptr<ByteStream>>> outcome;
  spawn(port, Task::join(port.context, late.port, &as, Clock::now() + 20s, &outcome));
  port.loop.run_for(120ms);  // some attempts fail meanwhile
  CHECK_FALSE(outcome.has_value());
  late.listen();
  late.accept(port).take().reset();  // a connection closed at once counts as busy
  port.acceptor->stop();
  TcpListener listener;
  listener.port = late.port;
  listener.fds.push_back(std::move(late.fd));
  port.guard(std::move(listener));
  REQUIRE(port.run_until([&] { return outcome.has_value(); }));
  CHECK(outcome->has_value());

  std::optional<Result<std::unique_ptr<ByteStream>>> never;
  RawPort silent;
  spawn(port, Task::join(port.context, silent.port, &as, Clock::now() + 300ms, &never));
  REQUIRE(port.run_until([&] { return never.has_value(); }));
  CHECK(never->error().code == ErrorCode::kTimeout);
  const std::string where = "127.0.0.1:" + std::to_string(silent.port);
  CHECK(never->error().text ==
        "no master answered in time: no answer at " + where +
            ": Connection refused; check that ddplaunch runs on node 0 and that this port is "
            "open there");
}

}  // namespace
}  // namespace ddp::test
