#include "rendezvous/link/link_hello.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/unit/rendezvous/link/client_hello_bytes.h"

namespace ddp::rendezvous {
namespace {

LinkIdentity sample() {
  LinkIdentity identity{LinkRole::kAgent, "job-7.f_3", "gpu02", {}};
  for (std::size_t i = 0; i < identity.nonce.size(); ++i)
    identity.nonce[i] = static_cast<std::uint8_t>(i * 17);
  return identity;
}

TEST_CASE("an identity survives its encoding") {
  const std::string text = identity_text(sample());
  CHECK(text == "ddplaunch-link/2 agent job-7.f_3 gpu02 00112233445566778899aabbccddeeff");
  const auto read = parse_identity(text);
  REQUIRE(read.has_value());
  CHECK(*read == sample());
  LinkIdentity longest{LinkRole::kMaster, std::string(64, 'j'), std::string(64, 'n'), {}};
  CHECK(identity_text(longest).size() <= LinkIdentity::kMaxText);
  CHECK(*parse_identity(identity_text(longest)) == longest);
}

TEST_CASE("unknown bytes and an identity of another version are distinguished") {
  const std::string text = identity_text(sample());
  const auto flaw = [](std::string_view bytes) { return parse_identity(bytes).error(); };
  CHECK(flaw("") == LinkRefusal::kOtherTls);
  CHECK(flaw("Client_identity") == LinkRefusal::kOtherTls);
  CHECK(flaw("ddplaunch-link/3 whatever comes then") == LinkRefusal::kOtherLink);
  CHECK(flaw("ddplaunch-link/01 agent j n 00") == LinkRefusal::kOtherTls);
  CHECK(flaw("ddplaunch-link/ agent") == LinkRefusal::kOtherTls);
  for (const std::string& bad :
       {text + " ", text + "0", text.substr(1), text.substr(0, text.size() - 1),
        std::string("ddplaunch-link/2 owner job1 gpu02 00112233445566778899aabbccddeeff"),
        std::string("ddplaunch-link/2 agent  gpu02 00112233445566778899aabbccddeeff"),
        std::string("ddplaunch-link/2 agent jo\0b gpu02 00112233445566778899aabbccddeeff", 67),
        std::string("ddplaunch-link/2 agent job1 gpu/02 00112233445566778899aabbccddeeff"),
        std::string("ddplaunch-link/2 agent job1 gpu02 00112233445566778899AABBCCDDEEFF"),
        "ddplaunch-link/2 agent " + std::string(65, 'j') + " gpu02 00112233445566778899aabbccddeeff"}) {
    INFO(bad);
    CHECK(flaw(bad) == LinkRefusal::kOtherTls);
  }
}

TEST_CASE("the first messages of a link survive their encoding") {
  const std::string line = hello_line({1, "0.1.0", 3, 4});
  CHECK(line == "ddplaunch-join 1 0.1.0 3 4\n");
  const auto hello = parse_hello(line.substr(0, line.size() - 1)).value();
  CHECK(hello.protocol == 1);
  CHECK(hello.version == "0.1.0");
  CHECK(hello.rank == 3);
  CHECK(hello.nodes == 4);
  CHECK(!parse_hello("ddplaunch-join 1 0.1.0 - 0").value().rank);
  for (const char* wrong : {"", "GET / HTTP/1.1", "ddplaunch-join 1 0.1.0 -1 4", "ddplaunch-join 1 0.1.0 3",
                            "ddplaunch-join x 0.1.0 3 4", "ddplaunch-join 1 0.1.0 3 4 5"})
    CHECK(!parse_hello(wrong));

  LinkAnswer slot;
  slot.rank = 2;
  slot.job_id = "run7";
  CHECK(answer_line(slot) == "ddplaunch-slot 2 run7\n");
  CHECK(parse_answer("ddplaunch-slot 2 run7").value().rank == 2);
  CHECK(parse_answer("ddplaunch-slot 2 run7").value().job_id == "run7");
  LinkAnswer refusal;
  refusal.refusal = LinkRefusal::kOutOfRange;
  refusal.text = "no\nway";
  CHECK(parse_answer(answer_line(refusal).substr(0, answer_line(refusal).size() - 1)).value().refusal ==
        LinkRefusal::kOutOfRange);
  CHECK(parse_answer("ddplaunch-refused taken it is there").value().text == "it is there");
  CHECK(answer_line({std::nullopt, {}, LinkRefusal::kNoAgent, "no such file"}) ==
        "ddplaunch-refused agent no such file\n");
  CHECK(parse_answer("ddplaunch-refused agent no such file").value().refusal == LinkRefusal::kNoAgent);
  // A malicious master's text is shown as one line, without escape sequences.
  CHECK(parse_answer("ddplaunch-slot 2 run\x1b[2J").value().job_id == "run\\x1b[2J");
  CHECK(parse_answer("ddplaunch-refused taken \x1b[2J\r\xe2\x80\xae").value().text == "\\x1b[2J\\r\\u202e");
  for (const char* wrong : {"", "ddplaunch-slot 2", "ddplaunch-slot x run7", "ddplaunch-refused why not"})
    CHECK(!parse_answer(wrong));
}

TEST_CASE("a host's name becomes the name of a link") {
  CHECK(link_name_of("gpu02.cluster") == "gpu02.cluster");
  CHECK(link_name_of("fe80::1%eth0") == "fe80__1_eth0");
  CHECK(link_name_of("") == "-");
  CHECK(link_name_of(std::string(100, 'x')).size() == 64);
  CHECK(is_link_name("-"));
  CHECK_FALSE(is_link_name(""));
  CHECK_FALSE(is_link_name("a b"));
}

using test::HelloBytes;

/// Returns why a hello is not ddplaunch's; "offer" if it is.
std::string verdict(const HelloBytes& hello) {
  const std::string record = hello.record();
  const ParsedClientHello parsed = parse_client_hello(record);
  if (!parsed.identity.empty()) return "offer";
  return parsed.refusal == LinkRefusal::kOtherTls ? std::string(parsed.why) : "not TLS";
}

bool needs_more(std::string_view bytes) {
  const ParsedClientHello parsed = parse_client_hello(bytes);
  return parsed.identity.empty() && !parsed.refusal;
}

TEST_CASE("a valid hello gives its identity for any chunking") {
  const HelloBytes hello;
  const std::string record = hello.record();
  const ParsedClientHello parsed = parse_client_hello(record);
  REQUIRE(!parsed.identity.empty());
  CHECK(parsed.identity == hello.identity);
  for (std::size_t size = 0; size < record.size(); ++size) {
    INFO(size);
    CHECK(needs_more(std::string_view(record).substr(0, size)));
  }
}

TEST_CASE("a hello that weakens the link is refused before TLS reads it") {
  using test::number;
  CHECK(verdict({.versions = number(0x0303, 2)}) == "it offers no TLS 1.3");
  CHECK(verdict({.versions = number(0x03040303, 4)}) == "offer");
  CHECK(verdict({.suites = number(0x1302, 2)}) == "it does not offer TLS_AES_128_GCM_SHA256");
  CHECK(verdict({.modes = number(0, 1)}) == "it offers a key without Diffie-Hellman");
  CHECK(verdict({.more = HelloBytes::extension(42, "")}) == "it sends early data");
  CHECK(verdict({.offers_key = false}) == "it offers no key");
  CHECK(verdict({.keys = 2}) == "it offers more than one key");
  for (const auto& [flaw, hello] :
       {std::pair("no identity", HelloBytes{.keys = 0}),
        std::pair("compression", HelloBytes{.compressions = number(1, 1)}),
        std::pair("binder of SHA-384", HelloBytes{.binder = std::string(48, 'b')}),
        std::pair("extension behind the key", HelloBytes{.after = HelloBytes::extension(0, "")})}) {
    INFO(flaw);
    CHECK(verdict(hello) == "its hello is malformed");
  }
}

TEST_CASE("a hello is limited in size") {
  HelloBytes big;
  big.identity = std::string(kMaxClientHello, 'x');
  CHECK(verdict(big) == "its hello is longer than a hello of ddplaunch");
  // The first five bytes decide; the parser waits for nothing.
  CHECK(parse_client_hello(big.record().substr(0, 5)).refusal == LinkRefusal::kOtherTls);
  const std::string two = HelloBytes().record() + "x";
  CHECK(parse_client_hello(two).why == "it does not wait for an answer");
  const std::string bare =
      test::number(0x160301, 3) + test::sized(2, test::number(1, 1) + test::sized(3, "abc"));
  CHECK(parse_client_hello(bare).why == "it is not TLS 1.3");
}

TEST_CASE("every length field is checked") {
  const std::string good = HelloBytes().record();
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const unsigned char value : {0x00, 0x01, 0x7f, 0xff}) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(value);
      const ParsedClientHello parsed = parse_client_hello(bytes);
      if (!parsed.identity.empty()) CHECK(parsed.identity.size() < bytes.size());
    }
  }
}

TEST_CASE("bytes that are no TLS are recognized") {
  CHECK(parse_client_hello("GET / HTTP/1.1\r\n").refusal == LinkRefusal::kHttp);
  CHECK(parse_client_hello("PRI * HTTP/2.0\r\n").refusal == LinkRefusal::kHttp);
  CHECK(needs_more("GE"));
  CHECK(parse_client_hello("GX").refusal == LinkRefusal::kPlain);
  CHECK(parse_client_hello("SSH-2.0-OpenSSH_9.2\r\n").refusal == LinkRefusal::kPlain);
  CHECK(parse_client_hello(std::string_view("\0", 1)).refusal == LinkRefusal::kPlain);  // PyTorch's store
  CHECK(needs_more("\x16"));
  CHECK(parse_client_hello("\x16\x02").refusal == LinkRefusal::kPlain);
  CHECK(needs_more(""));
}

TEST_CASE("a refused master is pointed to the daemon, not to the job's master") {
  const LinkSide here{"gpu01:29499", "the token file /t", "3f9a2c", "job1", LinkRole::kMaster};
  CHECK(join_refusal_text(LinkRefusal::kPlain, here) ==
        "the program that answers at gpu01:29499 is not ddplaunchd --listen. Check the port: port= in the "
        "hostfile, or "
        "--daemon-port");
  CHECK(join_refusal_text(LinkRefusal::kOtherLink, here) ==
        "gpu01:29499 runs ddplaunch with another version of the link protocol. Install the same version on "
        "all nodes, "
        "and "
        "restart the daemon");
}

TEST_CASE("an alert carries the refusal from the listening to the joining side") {
  for (const LinkRefusal refusal :
       {LinkRefusal::kTokenDiffers, LinkRefusal::kOtherJob, LinkRefusal::kOtherRole, LinkRefusal::kOtherLink,
        LinkRefusal::kOtherTls}) {
    const std::string record = alert_record(refusal);
    REQUIRE(record.size() == 7);
    CHECK(refusal_of(static_cast<std::uint8_t>(record.back())) == refusal);
  }
  CHECK(refusal_of(47) == LinkRefusal::kTokenDiffers);  // as OpenSSL reports it
  CHECK_FALSE(refusal_of(80).has_value());
  CHECK(alert_record(LinkRefusal::kHttp).empty());
}

TEST_CASE("the joining side reports who has which value, and the remedy") {
  const LinkSide here{"gpu01:29400 (10.0.0.2)", "DDPLAUNCH_TOKEN", "3f9a2c", "job1"};
  CHECK(join_refusal_text(LinkRefusal::kTokenDiffers, here) ==
        "the token differs: gpu01:29400 (10.0.0.2) has another token than this node, which uses "
        "DDPLAUNCH_TOKEN (check 3f9a2c). The other side's log names the source and the check of its token. "
        "Give both sides the same token: the same DDPLAUNCH_TOKEN, or the same --token-file");
  CHECK(
      join_refusal_text(LinkRefusal::kOtherJob, here) ==
      "gpu01:29400 (10.0.0.2) does not run job job1: the address is another job's, or this node has another "
      "--job-id. Use the same --job-id on all nodes, and the MASTER_ADDR and MASTER_PORT of this job");
}

TEST_CASE("the listening side reports peer, claim and error text") {
  const LinkSide here{"the control port 29400", "the file /run/token", "71b2d0"};
  CHECK(refusal_line(LinkRefusal::kTokenDiffers, "10.0.0.3",
                     LinkIdentity{LinkRole::kAgent, "job1", "gpu02", {}}, "", here) ==
        "refused 10.0.0.3 (node gpu02, job job1): its token differs from ours (the file /run/token, check "
        "71b2d0)");
  CHECK(refusal_line(LinkRefusal::kHttp, "10.0.0.9", std::nullopt,
                     printable_start("GET /metrics HTTP/1.1\r\nHost: x"), here) ==
        "10.0.0.9 sent HTTP to the control port 29400: \"GET /metrics HTTP/1.1\", which is not a web server "
        "or proxy; closed");
}

TEST_CASE("bytes of an unknown peer are shown as printable text") {
  CHECK(printable_start(std::string_view("\x1b[2J\0\xff", 6)) == "\".[2J..\"");
  CHECK(printable_start(std::string(100, 'x')).size() == 42);
  CHECK(printable_start("one\ntwo") == "\"one\"");
}

using namespace std::chrono_literals;
using Time = AdmissionLimiter::Time;

AdmissionLimits small() {
  AdmissionLimits limits;
  limits.waiting = 4;
  limits.silent_per_address = 3;
  limits.deadline = 10s;
  limits.grace = 1s;
  limits.failures = 3;
  limits.window = 10s;
  limits.ban = 2s;
  return limits;
}

/// Returns the connections that are closed now: "evicted 3, silent 4".
std::string closed(AdmissionLimiter& limiter, Time now) {
  std::string text;
  for (const auto& [id, why] : limiter.take_overdue(now)) {
    REQUIRE((why == LinkRefusal::kEvicted || why == LinkRefusal::kSilent));
    text += (text.empty() ? "" : ", ") + std::string(why == LinkRefusal::kSilent ? "silent " : "evicted ") +
            std::to_string(id);
  }
  return text;
}

TEST_CASE("one address cannot exceed its share") {
  AdmissionLimiter limiter(small());
  const Time now{};
  CHECK_FALSE(limiter.admit(1, "a", now));
  CHECK_FALSE(limiter.admit(2, "a", now));
  CHECK_FALSE(limiter.admit(3, "a", now));
  CHECK(limiter.admit(4, "a", now) == LinkRefusal::kTooMany);
  CHECK_FALSE(limiter.admit(5, "b", now));
  CHECK(limiter.full());
  limiter.ended(2);
  limiter.ended(2);
  CHECK_FALSE(limiter.full());
  CHECK_FALSE(limiter.admit(6, "a", now));
  CHECK(limiter.waiting() == 4);
}

TEST_CASE("silent connections of one address cannot keep others of this address out") {
  AdmissionLimiter limiter(small());
  const Time start{};
  (void)limiter.admit(1, "a", start);
  (void)limiter.admit(2, "b", start);
  (void)limiter.admit(3, "a", start + 100ms);
  limiter.greeted(1);
  (void)limiter.admit(4, "a", start + 200ms);
  limiter.ended(1);
  (void)limiter.admit(5, "a", start + 300ms);
  CHECK(limiter.full());
  CHECK(limiter.take_overdue(start + 300ms).empty());
  limiter.ended(2);
  // No connection of this address is older than the grace period yet.
  CHECK(limiter.admit(6, "a", start + 1099ms) == LinkRefusal::kTooMany);
  CHECK(limiter.next_turn() == start + 10'100ms);
  // Each later connection takes the place of the oldest.
  CHECK_FALSE(limiter.admit(7, "a", start + 1100ms));
  CHECK(limiter.next_turn() < start);
  CHECK_FALSE(limiter.admit(8, "a", start + 1200ms));
  CHECK(limiter.admit(9, "a", start + 1200ms) == LinkRefusal::kTooMany);
  CHECK(limiter.waiting() == 3);
  CHECK(closed(limiter, start + 1200ms) == "evicted 3, evicted 4");
  limiter.ended(3);  // a later event for it changes nothing
  CHECK(limiter.waiting() == 3);
  CHECK(limiter.next_turn() == start + 10'300ms);
}

TEST_CASE("a connection with a valid hello counts globally, not in its address's share") {
  AdmissionLimiter limiter(small());
  const Time now{};
  for (AdmissionLimiter::Id id = 1; id <= 4; ++id) {
    CHECK_FALSE(limiter.admit(id, "a", now));
    limiter.greeted(id);
    limiter.greeted(id);
  }
  CHECK(limiter.full());
  for (AdmissionLimiter::Id id = 1; id <= 4; ++id)
    limiter.ended(id);
  limiter.greeted(1);
  for (AdmissionLimiter::Id id = 5; id <= 7; ++id)
    CHECK_FALSE(limiter.admit(id, "a", now));
  CHECK(limiter.admit(8, "a", now) == LinkRefusal::kTooMany);
}

TEST_CASE("connections that do not authenticate in time are closed, oldest first") {
  AdmissionLimiter limiter(small());
  const Time start{};
  CHECK_FALSE(limiter.next_turn());
  (void)limiter.admit(1, "a", start);
  (void)limiter.admit(2, "b", start + 1s);
  CHECK(limiter.next_turn() == start + 10s);
  CHECK(limiter.take_overdue(start + 9s).empty());
  CHECK(closed(limiter, start + 10s) == "silent 1");
  CHECK(limiter.next_turn() == start + 11s);
}

TEST_CASE("when full, the oldest connection of the busiest address is closed after its grace") {
  AdmissionLimiter limiter(small());
  const Time start{};
  (void)limiter.admit(1, "honest", start);
  (void)limiter.admit(2, "flood", start + 100ms);
  (void)limiter.admit(3, "flood", start + 200ms);
  CHECK(limiter.next_turn() == start + 10s);
  (void)limiter.admit(4, "flood", start + 300ms);
  CHECK(limiter.full());
  CHECK(limiter.next_turn() == start + 1100ms);
  CHECK(limiter.take_overdue(start + 1s).empty());
  CHECK(closed(limiter, start + 1100ms) == "evicted 2");
  CHECK_FALSE(limiter.full());
}

TEST_CASE("a valid hello gives more time, and is closed after silent connections") {
  AdmissionLimiter limiter(small());
  const Time start{};
  for (AdmissionLimiter::Id id = 1; id <= 3; ++id) {
    (void)limiter.admit(id, "a", start);
    limiter.greeted(id);
  }
  (void)limiter.admit(4, "b", start);
  REQUIRE(limiter.take_overdue(start + 1s).size() == 1);
  (void)limiter.admit(5, "b", start + 1s);
  limiter.greeted(5);
  CHECK(limiter.next_turn() == start + 8s);
  const auto overdue = limiter.take_overdue(start + 8s);
  REQUIRE(overdue.size() == 1);
  CHECK(overdue[0].id == 1);
}

TEST_CASE("an address with repeated failures is closed unread for a while") {
  AdmissionLimiter limiter(small());
  const Time start{};
  limiter.failed("a", start);
  limiter.failed("a", start + 11s);  // the first failure has expired
  limiter.failed("a", start + 12s);
  CHECK_FALSE(limiter.admit(1, "a", start + 12s));
  limiter.failed("a", start + 13s);
  CHECK(limiter.admit(2, "a", start + 13s) == LinkRefusal::kTooMany);
  CHECK_FALSE(limiter.admit(3, "b", start + 13s));
  CHECK_FALSE(limiter.admit(4, "a", start + 15s));
}

TEST_CASE("the memory of failures is bounded") {
  AdmissionLimiter limiter(small());
  const Time start{};
  for (int i = 0; i < 4'100; ++i)  // more than are remembered
    limiter.failed("address" + std::to_string(i), start);
  for (int i = 0; i < 3; ++i)
    limiter.failed("late", start + 20s);  // expired failures make room
  CHECK(limiter.admit(1, "late", start + 20s) == LinkRefusal::kTooMany);
}

TEST_CASE("the log of refusals is limited, and reports the omitted ones") {
  RefusalLog log;
  const Time start{};
  const auto pass = [&](const std::string& address, Time now) {
    return log.pass(LinkRefusal::kHttp, address, "line of " + address, now);
  };
  CHECK(pass("a", start + 100s) == "line of a");
  CHECK_FALSE(pass("a", start + 101s));
  CHECK_FALSE(pass("a", start + 102s));
  CHECK(log.pass(LinkRefusal::kPlain, "a", "other", start + 103s) == "other");
  CHECK(pass("b", start + 104s) == "line of b (2 more of this kind were not logged)");
  std::size_t lines = 0;
  for (int i = 0; i < 1000; ++i)
    lines += pass("c" + std::to_string(i), start + 105s).has_value() ? 1 : 0;
  CHECK(lines == RefusalLog::kLines - 3);
  CHECK(pass("a", start + 160s) == "line of a (983 more of this kind were not logged)");
}

}  // namespace
}  // namespace ddp::rendezvous
