#include "rendezvous/link/link_hello.h"

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

}  // namespace
}  // namespace ddp::rendezvous
