// Builds exit reports from arbitrary output of workers and the kernel. The text must not control a terminal,
// the document must be valid JSON, and the root cause must be one of the failures.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "launcher/agent_core/machine_text.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/report_json.h"
#include "rendezvous/flight_recorder/flight_recorder.h"
#include "rendezvous/flight_recorder/torch_record.h"
#include "tests/fuzz/require.h"

using namespace ddp::launcher;

namespace {

/// Cuts `bytes` before the next `mark`.
std::string_view take(std::string_view& bytes, char mark) {
  const std::size_t end = std::min(bytes.find(mark), bytes.size());
  const std::string_view part = bytes.substr(0, end);
  bytes.remove_prefix(std::min(end + 1, bytes.size()));
  return part;
}

Failure failure_from(std::string_view part, int rank) {
  Failure failure;
  const auto byte = [&](std::size_t at) {
    return at < part.size() ? static_cast<unsigned char>(part[at]) : 0;
  };
  failure.kind = byte(0) % 2 == 0 ? Failure::Kind::kExited : Failure::Kind::kSignaled;
  failure.host = byte(0) & 4 ? "a" : "b";
  failure.rank = rank;
  failure.status = 1 + byte(1) % 255;
  failure.signal = 1 + byte(1) % 64;
  failure.stopped_by_us = (byte(0) & 8) != 0;
  failure.happened.earliest = std::chrono::microseconds(byte(2) * 100);
  failure.happened.latest = failure.happened.earliest + std::chrono::microseconds(byte(3) * 20);
  part.remove_prefix(std::min<std::size_t>(4, part.size()));
  while (!part.empty() && failure.last_stderr.size() < 20)
    failure.last_stderr.emplace_back(take(part, '\n'));
  return failure;
}

/// Aborts if `text` has characters that control a terminal or disguise the text.
void check_safe(std::string_view text) {
  while (!text.empty()) {
    const ddp::Utf8Character character = ddp::first_character(text);
    require(!character.unsafe() || character.code == '\n' || character.code == '\t');
    text.remove_prefix(character.length);
  }
}

void check_kernel(std::string_view text) {
  if (const auto line = parse_kernel_line(text)) require(line->text.find('\n') == std::string::npos);
  (void)parse_oom_victim(text);
  (void)parse_oom_kills(text);
  (void)is_xid_line(text);
}

/// Reads `bytes` as a worker's flight recorder in shared memory, and as a dump that an agent sent.
void check_collectives(std::string_view bytes) {
  using namespace ddp::rendezvous;
  static FlightRecorderMemory memory;
  memory = {};
  std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof memory), reinterpret_cast<char*>(&memory));
  memory.magic = FlightRecorderMemory::kMagic;
  auto left = read_collectives(memory, 1, 64);
  if (left) {
    const auto parsed = parse_dump(dump_text(*left));
    require(parsed && parsed->rank == left->rank && parsed->groups.size() == left->groups.size());
  }
  const auto said = parse_dump(bytes);
  if (said) require(parse_dump(dump_text(*said)).has_value());
  // PyTorch's answers: the bytes alone, and inside an answer that is good apart from them.
  std::string record =
      R"({"entries":[{"collective_seq_id":1,"process_group":["0","default_pg"],)"
      R"("profiling_name":"gloo:all_reduce","input_sizes":[[8]],"input_dtypes":["Float"]}]})";
  if (!bytes.empty())
    record.replace(static_cast<unsigned char>(bytes[0]) % record.size(), bytes.size() % 8,
                   bytes.substr(1, 64));
  for (const std::string& answer : {std::string(bytes), record}) {
    FlightRecorderDump identity;
    identity.world_size = 4;
    const auto dump = read_torch_answers({answer, std::string(bytes), std::string(bytes)}, identity, 1, 64);
    if (dump) require(parse_dump(dump_text(*dump)).has_value());
    if (dump) (void)analyze_desync({*dump});
  }
  if (const auto body = http_body(bytes)) require(body->size() <= bytes.size());
  if (said && said->world_size > 1'000) return;  // the time grows with the number of missing ranks
  if (said) (void)analyze_desync({*said});
  if (left && said && left->world_size <= 1'000) (void)analyze_desync({*left, *said});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_kernel(bytes);
  check_collectives(bytes);
  JobEnd end;
  for (int rank = 0; rank < 8 && !bytes.empty(); ++rank) {
    end.failures.push_back(failure_from(take(bytes, '\x01'), rank));
    ddp::rendezvous::WorkerEvidence evidence;
    evidence.error_json = take(bytes, '\x01');
    evidence.oom = take(bytes, '\x02');
    evidence.xid = take(bytes, '\x02');
    end.failures.back().evidence = read_evidence(evidence);
  }
  const ExitReport exit = make_exit_report(end);
  check_safe(exit.text);
  require(end.failures.empty() == exit.text.empty());
  if (const Failure* cause = cause_of(end))
    require(&end.failures[static_cast<std::size_t>(cause->rank)] == cause);
  const std::string document = report_json(end, exit, {});
  check_safe(document);
  const auto json = nlohmann::json::parse(document, nullptr, false);
  require(!json.is_discarded() && json["exit_code"] == exit.exit_code);
  require(json["other_failures"].size() + (json["root_cause"].is_null() ? 0 : 1) == end.failures.size());
  return 0;
}
