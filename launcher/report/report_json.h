#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/job_end.h"
#include "launcher/report/sample_history.h"

namespace ddp::launcher {

using OrderedJson = nlohmann::ordered_json;  ///< keys keep the order of docs/users/report.md and check.md

/// Returns the JSON as one line, or with `indent` as several. Bytes that are no UTF-8 become U+FFFD.
template <class Json>
std::string json_line(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + '\n';
}

inline double in_seconds(std::chrono::nanoseconds time) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(time).count()) / 1e6;
}

inline OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

template <class T>
OrderedJson or_null(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

/// The error's name in docs/users/exit_codes.md.
inline std::string error_kind(const Error& error) {
  std::string kind = "Internal";
  for (const ExitCodeRow& row : exit_code_table()) {
    if (row.error == error.code) kind = row.kind;
  }
  return kind;
}

/// The report's facts about the job itself.
struct JobFacts {
  std::string version;  ///< of ddplaunch
  std::string job_id;
  std::string job_dir;             ///< empty: none was made
  std::vector<std::string> nodes;  ///< in the order of node ranks
  int world_size = 0;              ///< 0: not yet known
  int attempts = 1;
  double goodput = 0;  ///< see JobProgress, as the next three; they are of the last attempt
  std::optional<std::uint64_t> step;
  std::optional<double> step_seconds;
  std::optional<double> loss;
  UsageSummary usage;
  std::vector<std::string> warnings;  ///< of the job: a full disk, lost output
  std::chrono::nanoseconds began{0};  ///< on the master's CLOCK_MONOTONIC, as Failure::when
  std::chrono::nanoseconds ended{0};
  std::chrono::system_clock::time_point ended_at;  ///< `ended` by the wall clock
};

/// Returns the verdict as an object (docs/users/hang.md); null: there is none.
OrderedJson hang_json(const std::optional<HangVerdict>& verdict);

/// Returns the report for --report (docs/users/report.md): JSON, UTF-8, ends with a newline. Every key is
/// always present; unknown values are null. Invalid UTF-8 bytes become U+FFFD.
std::string report_json(const JobEnd& end, const ExitReport& exit, const JobFacts& facts);
/// Returns the same without other failures, earlier attempts, and long texts of the root cause.
std::string brief_report_json(const JobEnd& end, const ExitReport& exit, const JobFacts& facts);

/// Returns the time as "2026-11-21T07:40:27.123Z", RFC 3339.
std::string utc_text(std::chrono::system_clock::time_point time);

}  // namespace ddp::launcher
