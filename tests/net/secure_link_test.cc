// Peers that follow the protocol: the data of a guarded link, and the error that a refused node gets.
#include <algorithm>

#include "rendezvous/link/secure_stream.h"
#include "tests/net/secure_link_world.h"

namespace ddp::test {
namespace {

using namespace rendezvous;

/// Runs the handshake of each stream, which must succeed.
void shake_hands(GuardedPort& port, const std::vector<SecureStream*>& streams) {
  struct Task {
    static Awaitable<> shake(SecureStream* stream, std::optional<HandshakeEnd>* end) {
      *end = co_await stream->handshake();
    }
  };
  std::vector<std::optional<HandshakeEnd>> ends(streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i)
    port.run(Task::shake(streams[i], &ends[i]));
  REQUIRE(port.run_until(
      [&] { return std::ranges::all_of(ends, [](const auto& end) { return end.has_value(); }); }));
  for (const auto& end : ends)
    CHECK(!end->refusal);
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

TEST_CASE("a node with the token joins") {
  GuardedPort port;
  const Pair pair(port);
  CHECK(port.identities[0].job == "job1");
  CHECK(port.identities[0].node == "gpu02");
  CHECK(port.identities[0].role == LinkRole::kAgent);
  CHECK(port.hellos[0].version == "0.1.0");
  CHECK(port.notes.empty());
  CHECK(port.acceptor->waiting() == 0);
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
  shake_hands(port, {server.get(), client.get()});
  const std::string bytes = some_bytes(2'000'000);  // 20 keys
  const auto carry = [&](SecureStream& from, SecureStream& to, Talk& talk) {
    port.run(Talk::say(&talk, &from, bytes));
    port.run(Talk::hear(&talk, &to, bytes.size()));
  };
  Talk alone, up, down;
  carry(*server, *client, alone);
  REQUIRE(port.run_until([&] { return alone.sent + alone.heard.size() == 2 * bytes.size(); }));
  CHECK(alone.heard == bytes);
  // The same while the remote side renews its own keys.
  carry(*server, *client, down);
  carry(*client, *server, up);
  REQUIRE(
      port.run_until([&] { return down.heard.size() == bytes.size() && up.heard.size() == bytes.size(); }));
  CHECK(down.heard == bytes);
  CHECK(up.heard == bytes);
}

TEST_CASE("the end of the link is reported, with a goodbye or without") {
  GuardedPort port;
  Pair pair(port);
  Talk master;
  port.run(Talk::hear(&master, pair.master, 1));
  pair.node->close();
  char record = 0;
  CHECK(::recv(dynamic_cast<SecureStream&>(*pair.master).native_socket(), &record, 1, MSG_PEEK) == 1);
  CHECK(record == 23);  // the goodbye is an encrypted record
  REQUIRE(port.run_until([&] { return master.end.has_value(); }));
  CHECK(*master.end == asio::error::eof);

  GuardedPort other;
  Pair second(other);
  Talk own;
  other.run(Talk::hear(&own, second.node.get(), 1));
  other.loop.poll();
  second.node->close();
  REQUIRE(other.run_until([&] { return own.end.has_value(); }));
  CHECK(*own.end == asio::error::operation_aborted);
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
  shake_hands(port, {stream.get()});
  return stream;
}

TEST_CASE("a proven peer needs a valid hello, and in time") {
  AdmissionLimits limits;
  limits.deadline = 3s;
  GuardedPort port(limits);
  const auto wrong = proven_peer(port);
  const auto silent = proven_peer(port);
  Talk talk;
  port.run(Talk::say(&talk, wrong.get(), "GET / HTTP/1.1\n"));
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
  port.run(Task::join(&goal, Clock::now() + 20s, &outcome));
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
  port.run(Task::join(&goal, Clock::now() + 300ms, &never));
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
