#include "rendezvous/protocol/codec.h"

#include <string>
#include <variant>

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

std::string cleaned(std::string text) {
  clean_text(text);
  return text;
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

TEST_CASE("the texts of a message are cleaned, except output and logs of workers") {
  Hello hello;
  hello.hostname = "a\033b";
  hello.interfaces.resize(1);
  hello.interfaces[0].name = "eth\r0";
  Message message = hello;
  clean_texts(message);
  CHECK(std::get<Hello>(message).hostname == "a?b");
  CHECK(std::get<Hello>(message).interfaces[0].name == "eth?0");

  WorkerEvidence evidence;
  evidence.oom = "\033";
  evidence.error_json = "{\r\n}";
  message = evidence;
  clean_texts(message);
  CHECK(std::get<WorkerEvidence>(message).oom == "?");
  CHECK(std::get<WorkerEvidence>(message).error_json == "{\r\n}");

  evidence.oom = "a\nddplaunch: exit 0";
  evidence.xid = "Xid 79\nXid 43";
  message = evidence;
  clean_texts(message);
  CHECK(std::get<WorkerEvidence>(message).oom == "a\\nddplaunch: exit 0");
  CHECK(std::get<WorkerEvidence>(message).xid == "Xid 79\nXid 43");

  message = Output{0, 0, 1, 0, "\033[31m"};
  clean_texts(message);
  CHECK(std::get<Output>(message).data == "\033[31m");
  message = WorkerCollectives{0, 1, "{}\n{}\n"};
  clean_texts(message);
  CHECK(std::get<WorkerCollectives>(message).log == "{}\n{}\n");
}

TEST_CASE("no text of a node or worker starts a line of its own") {
  Notice notice;
  notice.text = "quiet\r\nddplaunch: exit 0";
  Message message = notice;
  clean_texts(message);
  CHECK(std::get<Notice>(message).text == "quiet?\\nddplaunch: exit 0");

  WorkerInTrouble trouble;
  trouble.text = "lost\nddplaunch: exit 0";
  message = trouble;
  clean_texts(message);
  CHECK(std::get<WorkerInTrouble>(message).text == "lost\\nddplaunch: exit 0");

  Refused refused;
  refused.text = "setup failed; its last lines:\n  one\n\nddplaunch: exit 0\n";
  message = refused;
  clean_texts(message);
  CHECK(std::get<Refused>(message).text ==
        "setup failed; its last lines:\n  one\n  \n  ddplaunch: exit 0\n  ");

  NodeChecked checked;
  checked.program_trouble = "none\nddplaunch: exit 0";
  checked.environment_trouble = "setup failed; its last lines:\n  one\nddplaunch: exit 0";
  message = checked;
  clean_texts(message);
  CHECK(std::get<NodeChecked>(message).program_trouble == "none\\nddplaunch: exit 0");
  CHECK(std::get<NodeChecked>(message).environment_trouble ==
        "setup failed; its last lines:\n  one\n  ddplaunch: exit 0");

  Inspection inspection;
  inspection.state = "sleeping\nddplaunch: exit 0";
  inspection.text = "one\ntwo\n";
  message = inspection;
  clean_texts(message);
  CHECK(std::get<Inspection>(message).state == "sleeping\\nddplaunch: exit 0");
  CHECK(std::get<Inspection>(message).text == "one\ntwo\n");
}

}  // namespace
}  // namespace ddp::rendezvous
