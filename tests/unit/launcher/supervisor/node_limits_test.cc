#include "launcher/node_limits.h"

#include "launcher/clean_text.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using rendezvous::Output;

std::string cleaned(std::string text) {
  clean_text(text);
  return text;
}

}  // namespace

TEST_CASE("output beyond the credit is refused, of each stream for itself") {
  NodeLimits limits(100);
  const std::string bytes(60, 'x');
  CHECK(limits.admit(Output{0, 0, 1, 0, bytes}).has_value());
  CHECK(limits.admit(Output{0, 0, 2, 0, bytes}).has_value());
  CHECK(limits.admit(Output{0, 0, 1, 0, bytes.substr(0, 40)}).has_value());
  CHECK(limits.admit(Output{0, 0, 1, 0, ""}).has_value());  // an end
  const auto over = limits.admit(Output{0, 0, 1, 0, "x"});
  REQUIRE_FALSE(over.has_value());
  CHECK(over.error().code == ErrorCode::kProtocol);
  CHECK(over.error().text == "it sends more output than it was given credit for");
  CHECK(limits.taken(1) == 100);
  CHECK(limits.give_back(1) == 100);
  CHECK(limits.admit(Output{0, 0, 1, 0, bytes}).has_value());
  CHECK(limits.taken(2) == 60);
  for (const std::uint8_t stream : {std::uint8_t{0}, std::uint8_t{3}})
    CHECK(limits.admit(Output{0, 0, stream, 0, "x"}).error().text ==
          "it sends output of a stream that there is not");
}

TEST_CASE("findings of a hang are bounded for each attempt") {
  NodeLimits limits(0);
  rendezvous::Inspection inspection;
  inspection.text.assign(NodeLimits::kInspected / 2, 'x');
  CHECK(limits.admit(inspection).has_value());
  CHECK_FALSE(limits.admit(inspection).has_value());
  inspection.attempt = 1;
  CHECK(limits.admit(inspection).has_value());
}

TEST_CASE("words of a node end at a number") {
  NodeLimits limits(0);
  for (std::size_t i = 0; i < NodeLimits::kNotices; ++i)
    REQUIRE(limits.notice() == NodeLimits::Shown::kYes);
  CHECK(limits.notice() == NodeLimits::Shown::kLast);
  CHECK(limits.notice() == NodeLimits::Shown::kNo);
}

TEST_CASE("a node with more addresses than can be") {
  NodeLimits limits(0);
  rendezvous::Hello hello;
  hello.interfaces.resize(NodeLimits::kHelloInterfaces);
  CHECK(limits.admit(hello).has_value());
  hello.interfaces.resize(NodeLimits::kHelloInterfaces + 1);
  CHECK_FALSE(limits.admit(hello).has_value());
}

TEST_CASE("control characters do not reach a terminal") {
  CHECK(cleaned("plain text\n\tof two lines") == "plain text\n\tof two lines");
  CHECK(cleaned("a\033[2Jb\rc\ad\x7f") == "a?[2Jb?c?d?");
  CHECK(cleaned(std::string("a\0b", 3)) == "a?b");
  CHECK(cleaned("a\xc2\x9b"
                "31mb") == "a?31mb");                                // CSI as one character
  CHECK(cleaned("caf\xc3\xa9 \xc2\xa0") == "caf\xc3\xa9 \xc2\xa0");  // what is no control stays
  CHECK(cleaned("x\xe2\x80\xaey\xe2\x81\xa9") == "x?y?");            // marks that turn the writing
  CHECK(cleaned("\xe2\x80\xa6 \xe2\x82\xac") == "\xe2\x80\xa6 \xe2\x82\xac");
  CHECK(cleaned("\xff\xc2") == "\xff\xc2");
}

TEST_CASE("the texts of a message, but not the workers' own") {
  rendezvous::Hello hello;
  hello.hostname = "a\033b";
  hello.interfaces.resize(1);
  hello.interfaces[0].name = "eth\r0";
  rendezvous::Message message = hello;
  clean_texts(message);
  CHECK(std::get<rendezvous::Hello>(message).hostname == "a?b");
  CHECK(std::get<rendezvous::Hello>(message).interfaces[0].name == "eth?0");

  rendezvous::WorkerEvidence evidence;
  evidence.oom = "\033";
  evidence.error_json = "{\r\n}";
  message = evidence;
  clean_texts(message);
  CHECK(std::get<rendezvous::WorkerEvidence>(message).oom == "?");
  CHECK(std::get<rendezvous::WorkerEvidence>(message).error_json == "{\r\n}");

  message = Output{0, 0, 1, 0, "\033[31m"};
  clean_texts(message);
  CHECK(std::get<Output>(message).data == "\033[31m");
}

}  // namespace ddp::launcher
