#include "rendezvous/link/link_hello.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/unit/rendezvous/link/client_hello_bytes.h"

namespace ddp::rendezvous {
namespace {

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
  HelloBytes old;
  old.versions = test::number(0x0303, 2);
  CHECK(verdict(old) == "it offers no TLS 1.3");
  HelloBytes both;
  both.versions = test::number(0x03040303, 4);
  CHECK(verdict(both) == "offer");
  HelloBytes suite;
  suite.suites = test::number(0x1302, 2);
  CHECK(verdict(suite) == "it does not offer TLS_AES_128_GCM_SHA256");
  HelloBytes no_dhe;
  no_dhe.modes = test::number(0, 1);
  CHECK(verdict(no_dhe) == "it offers a key without Diffie-Hellman");
  HelloBytes early;
  early.more = HelloBytes::extension(42, "");
  CHECK(verdict(early) == "it sends early data");
  HelloBytes no_key;
  no_key.offers_key = false;
  CHECK(verdict(no_key) == "it offers no key");
  HelloBytes two;
  two.keys = 2;
  CHECK(verdict(two) == "it offers more than one key");
  HelloBytes none;
  none.keys = 0;
  CHECK(verdict(none) == "its hello is malformed");
  HelloBytes compressed;
  compressed.compressions = test::number(1, 1);
  CHECK(verdict(compressed) == "its hello is malformed");
  HelloBytes binder;
  binder.binder = std::string(48, 'b');
  CHECK(verdict(binder) == "its hello is malformed");
  HelloBytes behind;
  behind.after = HelloBytes::extension(0, "");
  CHECK(verdict(behind) == "its hello is malformed");
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

}  // namespace
}  // namespace ddp::rendezvous
