// Unknown peers and attackers at a guarded port, and at a node that joins.
#include <malloc.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>

#include "rendezvous/link/link_hello.h"
#include "tests/net/secure_link_world.h"
#include "tests/unit/rendezvous/link/client_hello_bytes.h"

namespace ddp::test {
namespace {

using namespace rendezvous;

/// Sends `bytes`, and returns the port's answer before it closed.
std::string answer_to(GuardedPort& port, std::string_view bytes) {
  RawPeer peer(port.port);
  REQUIRE(peer.say(bytes));
  REQUIRE(port.run_until([&] { return peer.is_closed(); }));
  return peer.heard();
}

TEST_CASE("bytes that are no TLS are closed without an answer and logged once") {
  GuardedPort port;
  for (int i = 0; i < 10; ++i)
    CHECK(answer_to(port, "GET /metrics HTTP/1.1\r\nHost: gpu01\r\n\r\n").empty());
  CHECK(answer_to(port, "SSH-2.0-OpenSSH_9.2\r\n").empty());
  CHECK(answer_to(port, std::string_view("\0\x3c\x85\xf3\x1d", 5)).empty());
  CHECK(port.notes ==
        std::vector<std::string>{
            "127.0.0.1 sent HTTP to the control port: \"GET /metrics HTTP/1.1\", which is not "
            "a web server or proxy; closed",
            "127.0.0.1 did not use TLS with the control port: \"SSH-2.0-OpenSSH_9.2\"; closed"});
  CHECK(port.acceptor->waiting() == 0);
}

TEST_CASE("malformed hellos get an alert and no TLS session") {
  const auto alert = [](int number) {
    return std::string("\x15\x03\x03\0\x02\x02", 6) + static_cast<char>(number);
  };
  GuardedPort port;
  HelloBytes version;
  version.identity = "ddplaunch-link/1 agent job1 gpu02 00";
  CHECK(answer_to(port, version.record()) == alert(70));
  HelloBytes foreign;
  foreign.identity = "Client_identity";
  CHECK(answer_to(port, foreign.record()) == alert(40));
  HelloBytes old;
  old.versions = number(0x0303, 2);
  CHECK(answer_to(port, old.record()) == alert(40));
  HelloBytes no_dhe;
  no_dhe.modes = number(0, 1);
  CHECK(answer_to(port, no_dhe.record()) == alert(40));
  HelloBytes big;
  big.identity = std::string(2000, 'x');
  CHECK(answer_to(port, big.record().substr(0, 600)) == alert(40));
  REQUIRE(port.notes.size() == 2);
  CHECK(
      port.notes[0] ==
      "127.0.0.1 has another version of the link protocol than this ddplaunch; refused at the control port");
  CHECK(
      port.notes[1] ==
      "127.0.0.1 used TLS with the control port but is not ddplaunch: its identity is not one of ddplaunch; "
      "refused");
}

TEST_CASE("silent and slow peers are disconnected at the deadline") {
  AdmissionLimits limits;
  limits.deadline = 400ms;
  GuardedPort port(limits);
  RawPeer silent(port.port);
  RawPeer slow(port.port, 2);
  const std::string hello = HelloBytes().record();
  std::size_t said = 0;
  auto next = Clock::now();
  REQUIRE(port.run_until([&] {
    if (Clock::now() >= next && said < hello.size() && !slow.is_closed()) {
      (void)slow.say(hello.substr(said++, 1));
      next = Clock::now() + 20ms;  // complete after 5 s
    }
    return silent.is_closed() && slow.is_closed();
  }));
  CHECK(said < hello.size());
  CHECK(port.acceptor->waiting() == 0);
  std::sort(port.notes.begin(), port.notes.end());
  CHECK(port.notes ==
        std::vector<std::string>{
            "127.0.0.1 connected to the control port and did not authenticate in time; closed",
            "127.0.0.2 connected to the control port and did not authenticate in time; closed"});
}

TEST_CASE("a node joins during a flood of silent connections, and the flood uses little memory") {
  AdmissionLimits limits;
  limits.waiting = 32;
  limits.silent_per_address = 16;
  limits.grace = 50ms;
  GuardedPort port(limits);
  std::vector<RawPeer> flood;
  for (int i = 0; i < 300; ++i)
    flood.emplace_back(port.port, static_cast<std::uint8_t>(2 + i % 20));
  std::size_t most = 0;
  std::optional<JoinOutcome> outcome;
  const LinkGoal as = port.joiner();
  port.start_join(as, outcome);
  REQUIRE(port.run_until([&] {
    most = std::max(most, port.acceptor->waiting());
    return outcome.has_value();
  }));
  INFO(outcome->error.text);
  CHECK(outcome->stream);
  CHECK(most <= limits.waiting);
  CHECK(port.notes.size() <= RefusalLog::kLines);
  CHECK(std::any_of(port.notes.begin(), port.notes.end(), [](const std::string& line) {
    return line.find("was slow to authenticate while others waited at the control port; closed") !=
           std::string::npos;
  }));
}

TEST_CASE("an address cannot exceed its share, and is banned after repeated failures") {
  AdmissionLimits limits;
  limits.silent_per_address = 4;
  limits.deadline = limits.window = 60s;
  limits.grace = 30s;
  limits.failures = 5;
  limits.ban = 30s;
  GuardedPort port(limits);
  std::vector<RawPeer> peers;
  for (int i = 0; i < 8; ++i)
    peers.emplace_back(port.port, 2);
  const auto closed = [&] {
    return std::count_if(peers.begin(), peers.end(), [](RawPeer& p) { return p.is_closed(); });
  };
  REQUIRE(port.run_until([&] { return closed() == 4; }));
  CHECK(port.acceptor->waiting() == 4);
  CHECK(port.notes[0] ==
        "127.0.0.2 has too many unauthenticated or failed connections to the control port; closed");

  for (int i = 0; i < 10; ++i) {  // unknown bytes, but no wrong proof
    (void)answer_to(port, "GET / HTTP/1.1\r\n");
    CHECK_FALSE(port.join(port.joiner(kToken, "job2")).stream);
  }
  for (int i = 0; i < 5; ++i)
    CHECK_FALSE(port.join(port.joiner(kToken + "x")).try_again);
  const JoinOutcome shut_out = port.join(port.joiner());
  CHECK_FALSE(shut_out.stream);
  CHECK(shut_out.try_again);
  RawPeer elsewhere(port.port, 9);
  REQUIRE(port.run_until([&] { return port.acceptor->waiting() == 5; }));
}

/// A man in the middle between a node and the port. It records both directions, and may change them.
struct Middle {
  GuardedPort& world;
  RawPort front;
  std::optional<RawPeer> node;
  std::optional<RawPeer> master;
  std::string up;
  std::string down;
  bool spoil_up = false;
  explicit Middle(GuardedPort& port) : world(port) { front.listen(); }
  void accept() {
    node.emplace(front.accept(world));
    master.emplace(world.port);
  }
  void carry() {
    std::string more = node->hear();
    up += more;
    if (spoil_up && !more.empty()) more.back() = static_cast<char>(more.back() ^ 1);
    if (!more.empty()) CHECK(master->say(more));
    const std::string back = master->hear();
    down += back;
    if (!back.empty()) CHECK(node->say(back));
  }
};

TEST_CASE("a replayed join is refused, and a changed byte ends the link") {
  GuardedPort port;
  Middle middle(port);
  std::optional<JoinOutcome> outcome;
  const LinkGoal as = port.joiner();
  port.start_join(as, outcome, 15s, middle.front.port);
  middle.accept();
  REQUIRE(port.run_until([&] {
    middle.carry();
    return outcome && !port.joined.empty();
  }));
  REQUIRE(outcome->stream);
  const std::string recorded = middle.up;
  CHECK(recorded.find("ddplaunch-link/2 agent job1 gpu02 ") != std::string::npos);
  CHECK(recorded.find(kToken) == std::string::npos);

  Talk master, node;
  port.run(Talk::hear(&master, port.joined[0].get(), 1000));
  port.run(Talk::say(&node, outcome->stream.get(), "first words"));
  REQUIRE(port.run_until([&] {
    middle.carry();
    return master.heard == "first words" && node.sent == master.heard.size();
  }));
  CHECK(middle.up.find("first words") == std::string::npos);
  middle.spoil_up = true;
  node.sent = 0;
  port.run(Talk::say(&node, outcome->stream.get(), "second words"));
  REQUIRE(port.run_until([&] {
    middle.carry();
    return master.end.has_value();
  }));
  CHECK(master.heard == "first words");
  CHECK(master.end->value() == EBADMSG);

  // Replay the same bytes: the hello is valid, but its proof cannot match the new answer. Bytes that come
  // with the hello, before an answer, are refused at once.
  CHECK(answer_to(port, recorded).size() == 7);
  RawPeer replay(port.port, 3);
  const std::size_t hello =
      5 + static_cast<unsigned char>(recorded[3]) * 256 + static_cast<unsigned char>(recorded[4]);
  REQUIRE(replay.say(recorded.substr(0, hello)));
  REQUIRE(port.run_until([&] { return !replay.is_closed() && replay.heard().size() > 50; }));
  REQUIRE(replay.say(recorded.substr(hello)));
  REQUIRE(port.run_until([&] { return replay.is_closed(); }));
  CHECK(port.joined.size() == 1);
  REQUIRE(port.notes.size() == 2);
  CHECK(port.notes[0].find("it does not wait for an answer") != std::string::npos);
  CHECK(
      port.notes[1].starts_with("127.0.0.3, which claims to be agent gpu02 of job job1, used TLS with the "
                                "control port but is not ddplaunch: "));
}

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

/// A TLS server with a self-made certificate, as a web server or an impostor has.
std::unique_ptr<SSL_CTX, Free> server_with_certificate(int version) {
  const std::unique_ptr<EVP_PKEY, Free> key(EVP_EC_gen("P-256"));
  const std::unique_ptr<X509, Free> certificate(X509_new());
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  REQUIRE(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0);
  std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_server_method()));
  REQUIRE(SSL_CTX_use_certificate(context.get(), certificate.get()) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1);
  SSL_CTX_set_max_proto_version(context.get(), version);
  return context;
}

JoinOutcome join_impostor(GuardedPort& port, int version) {
  RawPort impostor;
  impostor.listen();
  std::optional<JoinOutcome> outcome;
  const LinkGoal as = port.joiner();
  port.start_join(as, outcome, 15s, impostor.port);
  const RawPeer node = impostor.accept(port);
  const auto context = server_with_certificate(version);
  const std::unique_ptr<SSL, Free> ssl(SSL_new(context.get()));
  SSL_set_fd(ssl.get(), node.fd());
  REQUIRE(port.run_until([&] {
    (void)SSL_accept(ssl.get());
    return outcome.has_value();
  }));
  return std::move(*outcome);
}

TEST_CASE("a node refuses certificates and older TLS") {
  GuardedPort port;
  for (const int version : {TLS1_3_VERSION, TLS1_2_VERSION}) {
    const JoinOutcome outcome = join_impostor(port, version);
    CHECK_FALSE(outcome.stream);
    CHECK_FALSE(outcome.try_again);
    INFO(outcome.error.text);
    CHECK((outcome.error.code == ErrorCode::kAgentMismatch || outcome.error.code == ErrorCode::kUnreachable));
  }
}

/// Returns a node's outcome at a server that answers with `bytes`, or not at all.
JoinOutcome join_answered(GuardedPort& port, std::string_view bytes, std::chrono::milliseconds limit = 15s) {
  RawPort other;
  other.listen();
  std::optional<JoinOutcome> outcome;
  const LinkGoal as = port.joiner();
  port.start_join(as, outcome, limit, other.port);
  RawPeer node = other.accept(port);
  std::string hello;
  REQUIRE(port.run_until([&] { return !(hello += node.hear()).empty() || outcome; }));
  CHECK(!parse_client_hello(hello).identity.empty());
  if (bytes == "reflect")
    CHECK(node.say(hello));
  else if (!bytes.empty())
    CHECK(node.say(bytes));
  REQUIRE(port.run_until([&] { return outcome.has_value(); }));
  return std::move(*outcome);
}

TEST_CASE("a node reports what answers instead of the master") {
  GuardedPort port;
  const JoinOutcome web = join_answered(port, "HTTP/1.1 400 Bad Request\r\n\r\n");
  CHECK(web.error.code == ErrorCode::kAgentMismatch);
  CHECK(web.error.text ==
        "the program that answers at " + port.where() +
            " is not ddplaunch with a token. Check MASTER_ADDR and "
            "MASTER_PORT, "
            "and that the other side was not started with --insecure (it sent \"HTTP/1.1 400 Bad Request\")");
  CHECK_FALSE(join_answered(port, "reflect").stream);
  const JoinOutcome silent = join_answered(port, "", 300ms);
  CHECK(silent.error.code == ErrorCode::kTimeout);
  CHECK(silent.error.text == port.where() + " accepted the connection but did not answer in time");
}

TEST_CASE("an unauthenticated connection costs little memory") {
  AdmissionLimits limits;
  limits.waiting = 2000;
  limits.silent_per_address = 2000;
  GuardedPort port(limits);
  std::vector<RawPeer> peers;
  peers.reserve(400);
  const std::string begun = HelloBytes().record().substr(0, 100);
  const auto hold = [&](std::size_t count) {
    while (peers.size() < count) {
      peers.emplace_back(port.port);
      REQUIRE(peers.back().say(begun));
    }
    REQUIRE(port.run_until([&] { return port.acceptor->waiting() == count; }));
  };
  hold(100);
  const std::size_t before = ::mallinfo2().uordblks;
  hold(400);
  const std::size_t each = (::mallinfo2().uordblks - before) / 300;
  INFO(each << " bytes each");
  CHECK(each < 4096);  // a sanitizer's allocator reports nothing here
}

}  // namespace
}  // namespace ddp::test
