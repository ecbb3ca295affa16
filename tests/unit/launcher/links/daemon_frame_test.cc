#include "launcher/links/daemon_frame.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using FrameSender = DaemonFrameReader::FrameSender;

/// The result of a reader that gets `bytes` in pieces of `cut`; streams are joined.
struct FrameRecord {
  std::string input, output, errors, failure;
  std::vector<std::string> events;

  FrameRecord(FrameSender from, std::string_view bytes, std::size_t cut) {
    DaemonFrameReader reader(from);
    while (!bytes.empty()) {
      std::string_view part = bytes.substr(0, cut);
      bytes.remove_prefix(part.size());
      while (const auto piece = reader.next(part))
        add(*piece);
      if (reader.failure().empty()) {
        CHECK(part.empty());
      }
    }
    failure = reader.failure();
  }
  void add(const DaemonFrameReader::FramePiece& piece) {
    switch (piece.kind) {
      case DaemonFrame::kInput: input += piece.bytes; break;
      case DaemonFrame::kOutput: output += piece.bytes; break;
      case DaemonFrame::kErrors: errors += piece.bytes; break;
      case DaemonFrame::kInputEnd:
      case DaemonFrame::kOutputEnd: events.push_back("end of file"); break;
      case DaemonFrame::kEnded: events.push_back("ended " + std::to_string(piece.status)); break;
    }
  }
};

using Texts = std::vector<std::string>;

TEST_CASE("a frame is its kind, a zero, the size and the payload") {
  CHECK(daemon_frame(DaemonFrame::kErrors, "oh no") == std::string("\x13\x00\x05\x00oh no", 9));
  CHECK(daemon_ended(137) == std::string("\x20\x00\x02\x00\x89\x00", 6));
  CHECK(daemon_frame(DaemonFrame::kInputEnd, {}) == std::string("\x02\x00\x00\x00", 4));
  const std::string full = daemon_frame(DaemonFrame::kOutput, std::string(kMaxDaemonPayload, 'x'));
  CHECK(full.size() == 16384);
  CHECK(full.substr(0, 4) == std::string("\x11\x00\xfc\x3f", 4));
}

TEST_CASE("output of a node is decoded for any chunking") {
  const std::string long_line(kMaxDaemonPayload, 'l');
  const std::string bytes =
      daemon_frame(DaemonFrame::kOutput, "one") + daemon_frame(DaemonFrame::kErrors, "oh") +
      daemon_frame(DaemonFrame::kOutput, long_line) + daemon_frame(DaemonFrame::kOutputEnd, {}) +
      daemon_frame(DaemonFrame::kErrors, " no") + daemon_ended(113);
  for (const std::size_t cut : {1u, 2u, 3u, 5u, 7u, 4096u, 100'000u}) {
    CAPTURE(cut);
    const FrameRecord heard(FrameSender::kNode, bytes, cut);
    CHECK(heard.failure.empty());
    CHECK(heard.output == "one" + long_line);
    CHECK(heard.errors == "oh no");
    CHECK(heard.events == Texts{"end of file", "ended 113"});
  }
}

TEST_CASE("a master sends input and its end") {
  const FrameRecord heard(
      FrameSender::kMaster,
      daemon_frame(DaemonFrame::kInput, "hello") + daemon_frame(DaemonFrame::kInputEnd, {}), 3);
  CHECK(heard.input == "hello");
  CHECK(heard.events == Texts{"end of file"});
  CHECK(heard.failure.empty());
}

TEST_CASE("a frame at the wrong time, of the wrong side, kind or size ends the link") {
  const std::string input = daemon_frame(DaemonFrame::kInput, "x");
  const std::string output = daemon_frame(DaemonFrame::kOutput, "x");
  const std::string end = daemon_frame(DaemonFrame::kOutputEnd, {});
  const std::string input_end = daemon_frame(DaemonFrame::kInputEnd, {});
  const auto node = [](const std::string& bytes) {
    return FrameRecord(FrameSender::kNode, bytes, 2).failure;
  };
  const auto master = [](const std::string& bytes) {
    return FrameRecord(FrameSender::kMaster, bytes, 2).failure;
  };
  // The greeting and the failure of version 1 of the link.
  CHECK(node(std::string("\x10\0\2\0\1\0", 6)) == "an unexpected frame (kind 16, size 2)");
  CHECK(node(std::string("\x21\0\1\0x", 5)) == "an unexpected frame (kind 33, size 1)");
  CHECK(node(input) == "an unexpected frame (kind 1, size 1)");
  CHECK(node(end + output) == "an unexpected frame (kind 17, size 1)");
  CHECK(node(daemon_ended(0) + output) == "an unexpected frame (kind 17, size 1)");
  CHECK(node(daemon_ended(0) + daemon_ended(0)) == "an unexpected frame (kind 32, size 2)");
  CHECK(master(output) == "an unexpected frame (kind 17, size 1)");
  CHECK(master(input_end + input) == "an unexpected frame (kind 1, size 1)");
  CHECK(master(std::string("\0\0\0\0", 4)) == "an unexpected frame (kind 0, size 0)");
  CHECK(master(std::string("\xff\0\0\0", 4)) == "an unexpected frame (kind 255, size 0)");
  CHECK(master(std::string("\x01\x01\x01\0x", 5)) == "an unexpected frame (kind 1, size 1)");
  CHECK(master(std::string("\x01\0\0\0", 4)) == "an unexpected frame (kind 1, size 0)");
  CHECK(master(std::string("\x01\0\xff\xff", 4)) == "an unexpected frame (kind 1, size 65535)");
  CHECK(node(std::string("\x20\0\x04\0", 4)) == "an unexpected frame (kind 32, size 4)");
}

}  // namespace
}  // namespace ddp::launcher
