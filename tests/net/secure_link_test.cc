// Peers that follow the protocol: the data of a guarded link, and the error that a refused node gets.
#include "rendezvous/link/connection.h"
#include "rendezvous/link/secure_stream.h"
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
  port.run(std::move(task));
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
  CHECK(port.hellos[0].version == "0.1.0");
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
    return SecureStream::make(end, {asio::posix::stream_descriptor(port.loop, fd),
                                    who,
                                    session_key(link, who).value(),
                                    {},
                                    100'000})
        .value();
  };
  const auto server = make(SecureStream::TlsRole::kServer, ends[0]);
  const auto client = make(SecureStream::TlsRole::kClient, ends[1]);
  struct Task {
    static Awaitable<> shake(SecureStream* stream, std::optional<HandshakeEnd>* end) {
      *end = co_await stream->handshake();
    }
  };
  std::optional<HandshakeEnd> at_server;
  std::optional<HandshakeEnd> at_client;
  spawn(port, Task::shake(server.get(), &at_server));
  spawn(port, Task::shake(client.get(), &at_client));
  REQUIRE(port.run_until([&] { return at_server && at_client; }));
  CHECK(!at_server->refusal);
  CHECK(!at_client->refusal);
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
        "the token differs: " + port.where() +
            " has another token than this node, which uses the file "
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
        port.where() +
            " does not run job job2: the address is another job's, or this node has "
            "another --job-id. Use the same --job-id on all nodes, and the MASTER_ADDR and MASTER_PORT "
            "of this job");
  const JoinOutcome role = port.join(port.joiner(kToken, "job1", LinkRole::kMaster));
  CHECK(role.error.text ==
        port.where() +
            " is ddplaunch, but expects another kind of peer: the master of a job expects its "
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
  LinkGoal goal = port.joiner();
  goal.as.node = "gpu03";  // with gpu02's key
  CHECK(port.join(goal).error.text.starts_with("the token differs: "));
  LinkGoal master = port.joiner(kToken, "job1", LinkRole::kMaster);
  master.as.role = LinkRole::kAgent;
  CHECK(port.join(master).error.text.starts_with("the token differs: "));
  CHECK(port.joined.empty());
}

/// A peer that has proved its identity and has sent no hello.
std::unique_ptr<SecureStream> proven_peer(GuardedPort& port) {
  LinkGoal goal = port.joiner();
  const LinkIdentity who{LinkRole::kAgent, "job1", "gpu02", {}};
  RawPeer raw(port.port);
  auto stream = SecureStream::make(SecureStream::TlsRole::kClient,
                                   {asio::posix::stream_descriptor(port.loop, raw.take().release()), who,
                                    session_key(goal.key, who).value()})
                    .value();
  struct Task {
    static Awaitable<> shake(SecureStream* stream, std::optional<HandshakeEnd>* end) {
      *end = co_await stream->handshake();
    }
  };
  std::optional<HandshakeEnd> end;
  spawn(port, Task::shake(stream.get(), &end));
  REQUIRE(port.run_until([&] { return end.has_value(); }));
  CHECK(!end->refusal);
  return stream;
}

TEST_CASE("a proven peer needs a valid hello, and in time") {
  AdmissionLimits limits;
  limits.deadline = 3s;
  GuardedPort port(limits);
  const auto wrong = proven_peer(port);
  const auto silent = proven_peer(port);
  bool sent = false;
  spawn(port, send_all(wrong.get(), "GET / HTTP/1.1\n", &sent));
  REQUIRE(port.run_until([&] { return port.acceptor->waiting() == 1; }));
  REQUIRE(port.run_until([&] { return port.acceptor->waiting() == 0; }));
  CHECK(port.joined.empty());
  REQUIRE(port.notes.size() == 1);  // one line for each reason and address
  CHECK(port.notes[0] == "127.0.0.1 (gpu02) sent an invalid request: unknown line: GET / HTTP/1.1; closed");
  GuardedPort other(limits);
  const auto later = proven_peer(other);
  REQUIRE(other.run_until([&] { return !other.notes.empty(); }));
  CHECK(other.notes[0] == "127.0.0.1 (gpu02) sent an invalid request: none came in time; closed");
}

TEST_CASE("a hello without an answer is tried again, and a refusal is not") {
  GuardedPort port;
  port.answers = false;
  const JoinOutcome closed = port.join(port.joiner());
  CHECK_FALSE(closed.stream);
  CHECK(closed.try_again);
  CHECK(closed.error.code == ErrorCode::kLinkLost);
  CHECK(closed.error.text ==
        port.where() + " accepted the link but did not answer (the other side closed the connection)");
  port.answers = true;
  port.reply = {std::nullopt, {}, LinkRefusal::kNoAgent, "no such file"};
  const JoinOutcome refused = port.join(port.joiner());
  CHECK_FALSE(refused.stream);
  CHECK_FALSE(refused.try_again);
  CHECK(refused.error.code == ErrorCode::kAgentMissing);
  CHECK(refused.error.text == "the daemon could not start an agent there: no such file");
}

TEST_CASE("a node waits for a master that starts later") {
  GuardedPort port;
  RawPort late;
  LinkGoal goal = port.joiner();
  goal.host = "127.0.0.1";
  goal.port = late.port;
  struct Task {
    static Awaitable<> join(const LinkGoal* goal, Clock::time_point until,
                            std::optional<JoinOutcome>* outcome) {
      const Resolve by_address = resolve_address;
      *outcome = co_await secure_join(by_address, *goal, until);
    }
  };
  std::optional<JoinOutcome> outcome;
  spawn(port, Task::join(&goal, Clock::now() + 20s, &outcome));
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
  CHECK(outcome->stream);

  std::optional<JoinOutcome> never;
  RawPort silent;
  goal.port = silent.port;
  spawn(port, Task::join(&goal, Clock::now() + 300ms, &never));
  REQUIRE(port.run_until([&] { return never.has_value(); }));
  CHECK(never->error.code == ErrorCode::kTimeout);
  const std::string where = "127.0.0.1:" + std::to_string(silent.port);
  CHECK(never->error.text ==
        "no master answered in time: no answer at " + where +
            ": Connection refused; check that ddplaunch runs on node 0 and that this port is "
            "open there");
}

}  // namespace
}  // namespace ddp::test
