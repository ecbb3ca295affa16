// Decodes arbitrary bytes as lines of both sides, and derives the session of a worker from them. A decoded
// line must encode again, and a truncated text must not shrink further. InvariantChecker checks the session.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/worker/worker_protocol.h"
#include "tests/fuzz/require.h"

using namespace ddp::rendezvous;

namespace {

template <class Decode>
void there_and_back(std::string_view line, Decode decode) {
  const auto word = decode(line);
  if (!word) {
    require(word.error().code == ddp::ErrorCode::kProtocol && !word.error().text.empty());
    return;
  }
  const std::string once = encode_line(*word);
  require(once.size() <= kWorkerLineBytes && once.find('\n') == once.size() - 1);
  const auto back = decode(std::string_view(once).substr(0, once.size() - 1));
  require(back.has_value() && back->index() == word->index());
  // A second round trip must not truncate the texts further.
  const std::string twice = encode_line(*back);
  require(twice == once);
}

/// Encodes messages with `bytes`, repeated, as their text. The lines must fit their limit and decode again.
void encode_any(std::string_view bytes, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times && text.size() < 2 * kWorkerLineBytes; ++i)
    text += bytes;
  for (const std::string& line :
       {encode_line(WorkerMessage(WorkerTrouble{1, text, std::vector<std::uint32_t>(times, 4294967295U)})),
        encode_line(WorkerMessage(WorkerStep{1, text})), encode_line(AgentMessage(RevokeOrder{1, text, 1})),
        encode_line(AgentMessage(StopOrder{text, 1}))}) {
    require(line.size() <= kWorkerLineBytes && line.find('\n') == line.size() - 1);
    const std::string_view body = std::string_view(line).substr(0, line.size() - 1);
    require(decode_worker_line(body).has_value() || decode_agent_line(body).has_value());
  }
}

/// Checks the guarantees of WorkerSession that its owner relies on.
class InvariantChecker {
 public:
  void hear(const WorkerEvent& event, const std::optional<std::uint32_t>& attempt) {
    if (const auto* hello = std::get_if<WorkerHello>(&event)) {
      // A second one takes back that the worker can leave an attempt.
      require(hello->version == kWorkerProtocol && (!greeted_ || (rejoins_ && !hello->rejoin)));
      greeted_ = true;
      rejoins_ = hello->rejoin;
    } else if (const auto* misbehaved = std::get_if<WorkerMisbehaved>(&event)) {
      require(!misbehaved->words.empty() && ++misbehaviors_ <= 7);
    } else {
      require(greeted_);
    }
    // One that no attempt would change may come at any time, also before the first attempt.
    if (const auto* trouble = std::get_if<WorkerTrouble>(&event))
      require(!trouble->retry || attempt == trouble->attempt);
    if (const auto* ready = std::get_if<WorkerReady>(&event)) {
      require(attempt == ready->attempt && !ready_);
      ready_ = true;
    }
    if (const auto* answer = std::get_if<WorkerRevoked>(&event)) {
      require(attempt == answer->attempt && asked_);
      asked_ = false;
    }
  }
  void check_output(const std::string& output) {
    if (!output.empty()) require(greeted_ && output.back() == '\n');
    WorkerLines lines;
    lines.add(output);
    for (auto line = lines.next(); line && *line; line = lines.next()) {
      const auto word = decode_agent_line(**line);
      require(word.has_value() && !stopped_);
      if (std::holds_alternative<AttemptOrder>(*word)) asked_ = ready_ = false;
      if (std::holds_alternative<RevokeOrder>(*word)) asked_ = true;
      if (std::holds_alternative<StopOrder>(*word)) stopped_ = true;
    }
  }

 private:
  bool greeted_ = false;
  bool rejoins_ = false;
  bool asked_ = false;
  bool ready_ = false;
  bool stopped_ = false;
  int misbehaviors_ = 0;
};

void live(std::string_view bytes) {
  WorkerSession session;
  InvariantChecker checker;
  std::uint32_t attempt = 0;
  const auto hear = [&](std::string_view part) {
    for (const WorkerEvent& event : session.receive(part))
      checker.hear(event, session.attempt());
    checker.check_output(session.take_output());
  };
  const auto line = [&](const WorkerMessage& word) { hear(encode_line(word)); };
  while (!bytes.empty()) {
    const auto verb = static_cast<unsigned char>(bytes[0]);
    const std::uint32_t near = attempt + (verb >> 6) - 1;  // possibly stale, or not yet begun
    bytes.remove_prefix(1);
    switch (verb % 12) {
      case 0: line(WorkerHello{1 + (verb >> 7), 7, (verb & 64) == 0, (verb & 32) != 0}); break;
      case 1: session.begin({++attempt, 0, 1, 0, 1, 0, 1, "h:1", true, std::nullopt}); break;
      case 2: session.revoke({near, "lost", 5000}); break;
      case 3: line(WorkerRevoked{near, 3}); break;
      case 4: line(WorkerReady{near}); break;
      case 5: line(WorkerTrouble{near, "broken", {1}, (verb & 32) == 0}); break;
      case 6: line(WorkerStep{verb, "forward"}); break;
      case 7:
        if (verb > 200) session.stop({"user", 1});
        break;
      default: {
        const std::size_t size = std::min<std::size_t>(verb, bytes.size());
        hear(bytes.substr(0, size));
        bytes.remove_prefix(size);
        if ((verb & 16) != 0) hear("\n");
        break;
      }
    }
    checker.check_output(session.take_output());
    require(session.can_rejoin() ? session.state() != WorkerSession::State::kSilent : true);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  there_and_back(bytes, decode_worker_line);
  there_and_back(bytes, decode_agent_line);
  if (data[0] % 8 == 0) encode_any(bytes, 1 + data[0]);  // slow
  live(bytes);
  return 0;
}
