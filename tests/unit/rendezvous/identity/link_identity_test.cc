#include "rendezvous/identity/link_identity.h"

#include <string>

#include "tests/support/catch.h"

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
  CHECK(text == "ddplaunch-link/1 agent job-7.f_3 gpu02 00112233445566778899aabbccddeeff");
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
  CHECK(flaw("") == IdentityFlaw::kForeign);
  CHECK(flaw("Client_identity") == IdentityFlaw::kForeign);
  CHECK(flaw("ddplaunch-link/2 whatever comes then") == IdentityFlaw::kOtherVersion);
  CHECK(flaw("ddplaunch-link/01 agent j n 00") == IdentityFlaw::kForeign);
  CHECK(flaw("ddplaunch-link/ agent") == IdentityFlaw::kForeign);
  for (const std::string& bad :
       {text + " ", text + "0", text.substr(1), text.substr(0, text.size() - 1),
        std::string("ddplaunch-link/1 owner job1 gpu02 00112233445566778899aabbccddeeff"),
        std::string("ddplaunch-link/1 agent  gpu02 00112233445566778899aabbccddeeff"),
        std::string("ddplaunch-link/1 agent jo\0b gpu02 00112233445566778899aabbccddeeff", 67),
        std::string("ddplaunch-link/1 agent job1 gpu/02 00112233445566778899aabbccddeeff"),
        std::string("ddplaunch-link/1 agent job1 gpu02 00112233445566778899AABBCCDDEEFF"),
        "ddplaunch-link/1 agent " + std::string(65, 'j') + " gpu02 00112233445566778899aabbccddeeff"}) {
    INFO(bad);
    CHECK(flaw(bad) == IdentityFlaw::kForeign);
  }
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

}  // namespace
}  // namespace ddp::rendezvous
