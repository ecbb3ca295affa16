#include "apps/ddplaunch/operate/page_data.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "apps/ddplaunch/operate/job_files.h"
#include "base/files.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/control/control_socket.h"
#include "launcher/lines/bar_fold.h"
#include "launcher/lines/output_lines.h"

namespace ddp {
namespace {

using OrderedJson = nlohmann::ordered_json;
using launcher::RunState;

constexpr std::chrono::seconds kStatusTime{1};
constexpr std::size_t kReportJournalBytes = 32u << 20;
constexpr std::size_t kReportRanks = 32;  // in a report
constexpr std::size_t kReportEvents = 20'000;

std::string compact(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson events_of(const launcher::JobEntry& job) {
  OrderedJson events = OrderedJson::array();
  for (const char* name : {"/events.jsonl.1", "/events.jsonl"}) {
    std::istringstream lines(read_start(job.directory + name, kReportJournalBytes, O_NOFOLLOW | O_NONBLOCK));
    for (std::string line; std::getline(lines, line) && events.size() < kReportEvents;) {
      OrderedJson event = OrderedJson::parse(line, nullptr, false);
      if (event.is_object() && event.contains("event")) events.push_back(std::move(event));
    }
  }
  return events;
}

/// Returns output as a terminal would show it, without colors: of a bar its last state.
std::string shown_text(std::string_view output) {
  launcher::LineAssembler assembler{std::string()};
  std::string lines;
  assembler.add(output, lines);
  assembler.finish(lines);
  return launcher::without_colours(lines);
}

std::optional<std::uint32_t> number_in(const OrderedJson& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number_unsigned()) return {};
  return found->get<std::uint32_t>();
}

/// Returns attempt and rank of those whose output explains the end of the job: ranks that failed before their
/// attempt was stopped, and rank 0 of the last attempt.
std::set<std::pair<std::uint32_t, std::uint32_t>> shown_ranks(const OrderedJson& events) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> ranks;
  std::set<std::uint32_t> stopped;
  std::uint32_t last = 0;
  for (const OrderedJson& event : events) {
    const auto attempt = number_in(event, "attempt");
    const auto rank = number_in(event, "rank");
    if (!attempt) continue;
    last = std::max(last, *attempt);
    if (event["event"] == "attempt_stopping") stopped.insert(*attempt);
    const bool failed = event["event"] == "rank_exited" && number_in(event, "exit_code") != 0u;
    if (failed && rank && !stopped.contains(*attempt) && ranks.size() + 1 < kReportRanks)
      ranks.emplace(*attempt, *rank);
  }
  ranks.emplace(last, 0u);
  return ranks;
}

}  // namespace

std::string page_state(const launcher::JobEntry& job) {
  const RunState state = launcher::state_of(job);
  OrderedJson json{{"job", job.job},
                   {"state", launcher::state_name(state.kind)},
                   {"exit_code", state.exit_code ? OrderedJson(*state.exit_code) : OrderedJson()},
                   {"why", state.why},
                   {"started", job.started},
                   {"directory", job.directory},
                   {"command", job.command},
                   {"goodput", OrderedJson()},
                   {"warnings", OrderedJson::array()},
                   {"status", OrderedJson()}};
  if (state.kind == RunState::Kind::kRunning) {
    const auto answer = launcher::ask_job(job.socket, "GET", "/v1/status", kStatusTime);
    OrderedJson status = OrderedJson::parse(answer ? *answer : "", nullptr, false);
    if (status.is_object() && status.contains("nodes")) {
      json["warnings"] = status.value("warnings", OrderedJson::array());
      json["status"] = std::move(status);
    }
  }
  if (state.kind == RunState::Kind::kEnded) {
    const OrderedJson report = launcher::read_report(job.directory);
    if (report.is_object()) {
      json["goodput"] = report.value("goodput", OrderedJson());
      json["warnings"] = report.value("warnings", OrderedJson::array());
    }
  }
  return compact(json);
}

Result<std::string> page_output(const launcher::JobEntry& job, const OutputStream& place) {
  const std::string first = job.directory + "/attempt_" + std::to_string(place.attempt) +
                            format_text("/rank_%05u.", place.rank) + (place.is_stderr ? "stderr" : "stdout");
  // With --log-max-size the part with the highest number is the newest.
  UniqueFd fd;
  std::string path = first;
  for (int part = 1;; ++part) {
    UniqueFd next(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!next) break;
    fd = std::move(next);
    path = first + '.' + std::to_string(part);
  }
  if (!fd) {
    std::uint64_t read = 0;
    const LogKey key{place.attempt, place.rank, place.is_stderr ? "stderr" : "stdout", 0};
    for (ShortLog& log : read_short_attempts(job.directory, read))
      if (log.key == key) return shown_text(log.text);
    return Error{ErrorCode::kSystem, first + ": No such file or directory", ENOENT};
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return system_error(errno, first);
  const auto size = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
  std::string text(std::min(size, kPageOutputBytes), '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), static_cast<off_t>(size - text.size()));
  if (count < 0) return system_error(errno, first);
  text.resize(static_cast<std::size_t>(count));
  if (size > kPageOutputBytes) text.erase(0, text.find('\n') + 1);
  return shown_text(text);
}

std::string report_data(const launcher::JobEntry& job) {
  const OrderedJson events = events_of(job);
  OrderedJson output = OrderedJson::object();
  for (const auto& [attempt, rank] : shown_ranks(events)) {
    for (const bool is_stderr : {false, true}) {
      if (auto text = page_output(job, {attempt, rank, is_stderr}))
        output[format_text("%u %u %s", attempt, rank, is_stderr ? "stderr" : "stdout")] = std::move(*text);
    }
  }
  return compact({{"state", OrderedJson::parse(page_state(job))}, {"events", events}, {"output", output}});
}

}  // namespace ddp
