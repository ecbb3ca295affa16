#include "launcher/supervisor/node_limits.h"

#include "launcher/report/clean_text.h"
#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using rendezvous::Output;

std::string cleaned(std::string text) {
  clean_text(text);
  return text;
}

}  // namespace

TEST_CASE("output credit is counted and returned per stream, for any amount") {
  NodeLimits limits;
  const std::string bytes(8u << 20, 'x');
  CHECK(limits.admit(Output{0, 0, 1, 0, bytes.substr(0, 100)}).has_value());
  CHECK(limits.admit(Output{0, 0, 2, 0, bytes.substr(0, 60)}).has_value());
  CHECK(limits.admit(Output{0, 0, 1, 0, ""}).has_value());  // end of the stream
  CHECK(limits.taken(1) == 100);
  CHECK(limits.give_back(1) == 100);
  CHECK(limits.taken(1) == 0);
  CHECK(limits.taken(2) == 60);
  // A window is 1 MiB at most; these bytes are more than one message can give back.
  for (int i = 0; i < 513; ++i)
    REQUIRE(limits.admit(Output{0, 0, 1, 0, bytes}).has_value());
  CHECK(limits.give_back(1) == 0xFFFFFFFFu);
  CHECK(limits.give_back(1) == 1u + (8u << 20));
  CHECK(limits.taken(1) == 0);
  for (const std::uint8_t stream : {std::uint8_t{0}, std::uint8_t{3}})
    CHECK(limits.admit(Output{0, 0, stream, 0, "x"}).error().text == "it sent output of an unknown stream");
}

TEST_CASE("hang diagnostics are limited per attempt") {
  NodeLimits limits;
  rendezvous::Inspection inspection;
  inspection.text.assign(NodeLimits::kInspected / 2, 'x');
  CHECK(limits.admit(inspection).has_value());
  CHECK_FALSE(limits.admit(inspection).has_value());
  inspection.attempt = 1;
  CHECK(limits.admit(inspection).has_value());
  // Attempts must not alternate, for then the sizes would have no bound.
  inspection.attempt = 0;
  inspection.text.clear();
  CHECK_FALSE(limits.admit(inspection).has_value());
}

TEST_CASE("a node that rejoins repeatedly has one limit of notices and starts") {
  NodeLimits limits;
  for (std::size_t i = 0; i < NodeLimits::kNotices; ++i)
    REQUIRE(limits.notice() == NodeLimits::NoticeDecision::kYes);
  CHECK(limits.admit(Output{0, 0, 1, 0, "x"}).has_value());
  limits.begin_incarnation();
  CHECK(limits.taken(1) == 0);
  CHECK(limits.notice() == NodeLimits::NoticeDecision::kLast);
}

TEST_CASE("the notices of a node are limited") {
  NodeLimits limits;
  for (std::size_t i = 0; i < NodeLimits::kNotices; ++i)
    REQUIRE(limits.notice() == NodeLimits::NoticeDecision::kYes);
  CHECK(limits.notice() == NodeLimits::NoticeDecision::kLast);
  CHECK(limits.notice() == NodeLimits::NoticeDecision::kNo);
}

TEST_CASE("a node with too many addresses is refused") {
  NodeLimits limits;
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
  CHECK(cleaned("caf\xc3\xa9 \xc2\xa0") == "caf\xc3\xa9 \xc2\xa0");  // characters other than controls stay
  CHECK(cleaned("x\xe2\x80\xaey\xe2\x81\xa9") == "x?y?");            // bidirectional marks
  CHECK(cleaned("\xe2\x80\xa6 \xe2\x82\xac") == "\xe2\x80\xa6 \xe2\x82\xac");
  CHECK(cleaned("\xff\xc2") == "\xff\xc2");
  CHECK(cleaned("a\x9b"
                "31m") == "a?31m");                             // CSI as an 8-bit terminal takes it
  CHECK(cleaned("\xd8\x9c\xe2\x80\x8b\xef\xbb\xbf") == "???");  // U+061C, U+200B, U+FEFF
}

TEST_CASE("the texts of a message are cleaned, except the workers' output") {
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

  evidence.oom = "a\nddplaunch: exit 0";
  evidence.xid = "Xid 79\nXid 43";
  message = evidence;
  clean_texts(message);
  CHECK(std::get<rendezvous::WorkerEvidence>(message).oom == "a\\nddplaunch: exit 0");
  CHECK(std::get<rendezvous::WorkerEvidence>(message).xid == "Xid 79\nXid 43");

  message = Output{0, 0, 1, 0, "\033[31m"};
  clean_texts(message);
  CHECK(std::get<Output>(message).data == "\033[31m");
}

TEST_CASE("no text of a node or worker starts a line of its own") {
  rendezvous::Notice notice;
  notice.text = "quiet\r\nddplaunch: exit 0";
  rendezvous::Message message = notice;
  clean_texts(message);
  CHECK(std::get<rendezvous::Notice>(message).text == "quiet?\\nddplaunch: exit 0");

  rendezvous::WorkerInTrouble trouble;
  trouble.text = "lost\nddplaunch: exit 0";
  message = trouble;
  clean_texts(message);
  CHECK(std::get<rendezvous::WorkerInTrouble>(message).text == "lost\\nddplaunch: exit 0");

  rendezvous::Refused refused;
  refused.text = "setup failed; its last lines:\n  one\n\nddplaunch: exit 0\n";
  message = refused;
  clean_texts(message);
  CHECK(std::get<rendezvous::Refused>(message).text ==
        "setup failed; its last lines:\n  one\n  \n  ddplaunch: exit 0\n  ");

  rendezvous::NodeChecked checked;
  checked.program_trouble = "none\nddplaunch: exit 0";
  checked.environment_trouble = "setup failed; its last lines:\n  one\nddplaunch: exit 0";
  message = checked;
  clean_texts(message);
  CHECK(std::get<rendezvous::NodeChecked>(message).program_trouble == "none\\nddplaunch: exit 0");
  CHECK(std::get<rendezvous::NodeChecked>(message).environment_trouble ==
        "setup failed; its last lines:\n  one\n  ddplaunch: exit 0");

  rendezvous::Inspection inspection;
  inspection.state = "sleeping\nddplaunch: exit 0";
  inspection.text = "one\ntwo\n";
  message = inspection;
  clean_texts(message);
  CHECK(std::get<rendezvous::Inspection>(message).state == "sleeping\\nddplaunch: exit 0");
  CHECK(std::get<rendezvous::Inspection>(message).text == "one\ntwo\n");
}

}  // namespace ddp::launcher
