#include "launcher/report/journal.h"

#include <chrono>
#include <csignal>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using Kind = JournalEvent::Kind;

std::string line_of(const JournalEvent& event) {
  constexpr std::chrono::system_clock::time_point kTime{std::chrono::milliseconds(1'795'230'119'042)};
  return journal_line(event, 7, kTime);
}

TEST_CASE("an event is one line with every common key") {
  CHECK(line_of({.kind = Kind::kNodeJoined, .node = "gpu01"}) ==
        "{\"format\":1,\"id\":7,\"time\":\"2026-11-21T03:01:59.042Z\",\"event\":\"node_joined\",\"attempt\":"
        "null,"
        "\"node\":\"gpu01\",\"rank\":null,\"reason\":null}\n");
}

TEST_CASE("each kind of event ends with its own keys") {
  HangVerdict verdict;
  verdict.kind = HangVerdict::Kind::kStalled;
  verdict.text = "rank 3 is stopped by a signal";
  verdict.confidence = HangVerdict::Confidence::kMedium;
  verdict.ranks = {3};
  verdict.witnesses = {{"processes", 4, "rank 3 on a: stopped by a signal"}};
  verdict.quiet = std::chrono::milliseconds(2500);
  const std::pair<JournalEvent, std::string> rows[] = {
      {{.kind = Kind::kJobStarted, .job = "run7"}, R"("reason":null,"job":"run7"})"},
      {{.kind = Kind::kRankExited, .reason = "exited 3", .rank = 5, .attempt = 1, .exit_code = 3},
       R"("attempt":1,"node":null,"rank":5,"reason":"exited 3","exit_code":3,"signal":null})"},
      {{.kind = Kind::kRankExited, .rank = 5, .signal = SIGSEGV}, R"("exit_code":null,"signal":"SIGSEGV"})"},
      {{.kind = Kind::kAttemptStopping, .reason = "2 × 8", .failure = true},
       R"("reason":"2 × 8","failure":true})"},
      {{.kind = Kind::kAttemptStarted, .attempt = 2, .nodes = {{"gpu01", 0, 8}, {"gpu02", 8, 4}}},
       R"("nodes":[{"node":"gpu01","first_rank":0,"ranks":8},{"node":"gpu02","first_rank":8,"ranks":4}]})"},
      {{.kind = Kind::kHangNamed, .reason = verdict.text, .hang = verdict},
       R"("reason":"rank 3 is stopped by a signal","hang":{"state":"stalled","attempt":0,)"
       R"("text":"rank 3 is stopped by a signal","confidence":"medium","ranks":[3],"quiet_s":2.5,"witnesses":)"
       R"([{"source":"processes","ranks":4,"text":"rank 3 on a: stopped by a signal"}],"files":null}})"},
  };
  for (const auto& [event, end] : rows) {
    INFO(line_of(event));
    CHECK(line_of(event).ends_with(end + '\n'));
  }
}

TEST_CASE("a long reason with any bytes is one valid line") {
  const std::string line =
      line_of({.kind = Kind::kNodeAbsent, .reason = "\xff\n\x1b" + std::string(5000, 'x')});
  const auto event = nlohmann::json::parse(line);
  CHECK(line.find('\n') == line.size() - 1);
  CHECK(event["reason"] == "\xef\xbf\xbd\n\x1b" + std::string(997, 'x'));  // 1000 bytes, one of them replaced
}

}  // namespace
}  // namespace ddp::launcher
