// The failures of a job that belong to hosts; the lines of the history; and what they say about each host.
#include "launcher/report/host_history.h"

#include <algorithm>
#include <csignal>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/root_cause.h"

namespace ddp::launcher {
namespace {

using Json = nlohmann::json;

/// Version of the lines. Readers skip lines of another version.
constexpr int kHistoryFormat = 1;
/// Bytes of texts in a line; a DNS name has 253 at most.
constexpr std::size_t kHostBytes = 255;
constexpr std::size_t kCauseBytes = 64;
constexpr std::size_t kJobBytes = 64;
constexpr std::size_t kCausesShown = 3;

/// The agent ended because of a signal, as when a scheduler ends the job's step there.
bool was_signalled(const Error& error) {
  return error.sys == SIGTERM || error.sys == SIGINT || error.sys == SIGHUP;
}

/// Returns the cause in the words of the history if it belongs to the host of `root`.
std::optional<HostFault> host_fault(const Failure& root, int lost, const OwnMachine& own) {
  const bool is_own = std::ranges::count(own.names, root.host) > 0;
  HostFault fault;
  fault.host = is_own ? own.host_name : root.host;
  if (root.kind == Failure::Kind::kNode) {
    if (is_own || lost > 1 || root.error.code != ErrorCode::kLinkLost || was_signalled(root.error)) return {};
    fault.cause = "lost";
    return fault;
  }
  if (blame_of(root) != Blame::kMachine) return {};
  const std::vector<int> xids = hardware_xids(root);
  if (xids.empty()) return {};
  fault.cause = "Xid " + std::to_string(xids.front());
  fault.is_hardware = true;
  return fault;
}

}  // namespace

std::vector<HostFault> host_faults(const JobEnd& end, const JobFacts& facts, const OwnMachine& own) {
  std::vector<HostFault> faults;
  const auto add_fault = [&](const Failure& root, int lost) {
    auto fault = host_fault(root, lost, own);
    if (!fault || fault->host.empty()) return;
    // Counted back from the end, as in the report: a step of the wall clock changes no order.
    fault->time = std::chrono::floor<std::chrono::seconds>(
        facts.ended_at -
        duration_cast<std::chrono::system_clock::duration>(facts.ended - root.happened.latest));
    fault->job = facts.job_id;
    faults.push_back(std::move(*fault));
  };
  for (const Failure& root : end.earlier)
    add_fault(root, root.nodes_lost);
  if (const Failure* root = cause_of(end))
    add_fault(*root, std::max(root->nodes_lost, count_nodes(end.failures)));
  return faults;
}

namespace {

Json entry_of(const std::string& host, HistoryTime time) {
  return {{"format", kHistoryFormat},
          {"host", one_line(host).substr(0, kHostBytes)},
          {"time", static_cast<std::int64_t>(time.time_since_epoch().count())}};
}

}  // namespace

std::string fault_line(const HostFault& fault) {
  Json json = entry_of(fault.host, fault.time);
  json["cause"] = one_line(fault.cause).substr(0, kCauseBytes);
  json["hardware"] = fault.is_hardware;
  json["job"] = one_line(fault.job).substr(0, kJobBytes);
  return json_line(json);
}

std::string forget_line(const std::string& host, HistoryTime time) {
  Json json = entry_of(host, time);
  json["forget"] = true;
  return json_line(json);
}

void HostHistory::add(std::string_view lines, std::uint32_t writer, bool is_owner) {
  for (const std::string_view line : split_lines(lines)) {
    if (line.empty() || line.size() > kHistoryLine) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const auto number = [&json](const char* key) {
      const auto found = json.find(key);
      return found != json.end() && found->is_number_integer() ? found->get<std::int64_t>() : -1;
    };
    const auto text = [&json](const char* key) {
      const auto found = json.find(key);
      return found != json.end() && found->is_string() ? one_line(found->get<std::string>()) : std::string();
    };
    const auto is_set = [&json](const char* key) {
      const auto found = json.find(key);
      return found != json.end() && found->is_boolean() && found->get<bool>();
    };
    const std::string host = text("host");
    const std::int64_t seconds = number("time");
    const std::int64_t now = now_.time_since_epoch().count();
    if (number("format") != kHistoryFormat || host.empty() || host.size() > kHostBytes) continue;
    if (seconds < now - std::chrono::seconds(kHistoryKept).count() ||
        seconds > now + std::chrono::seconds(std::chrono::days(1)).count())
      continue;
    const HistoryTime time{std::chrono::seconds(seconds)};
    HostEntries& entries = hosts_[host];
    if (is_set("forget")) {
      HistoryTime& until = entries.forgotten.try_emplace(writer, HistoryTime::min()).first->second;
      until = std::max(until, time);
      if (is_owner) entries.forgotten_for_all = std::max(entries.forgotten_for_all, time);
      continue;
    }
    const std::string cause = text("cause").substr(0, kCauseBytes);
    entries.entries.push_back({time, writer, cause.empty() ? "unknown" : cause, is_set("hardware")});
  }
}

std::vector<HostRecord> HostHistory::records() const {
  std::vector<HostRecord> records;
  for (const auto& [host, known] : hosts_) {
    HostRecord record;
    record.host = host;
    std::map<std::string, int> recent, older;
    for (const Entry& entry : known.entries) {
      const auto forgotten = known.forgotten.find(entry.writer);
      if (entry.time <= known.forgotten_for_all ||
          (forgotten != known.forgotten.end() && entry.time <= forgotten->second))
        continue;
      const bool counts = entry.time + kHistoryWindow >= now_;
      ++record.kept;
      record.failures += counts ? 1 : 0;
      record.hardware += counts && entry.is_hardware ? 1 : 0;
      record.last = std::max(record.last, entry.time);
      ++(counts ? recent : older)[entry.cause];
    }
    if (record.kept == 0) continue;
    const std::map<std::string, int>& shown = recent.empty() ? older : recent;
    std::vector<std::pair<std::string, int>> causes(shown.begin(), shown.end());
    std::ranges::stable_sort(causes, std::ranges::greater(), &std::pair<std::string, int>::second);
    std::vector<std::string> words;
    for (const auto& [cause, count] : causes)
      words.push_back(count > 1 && causes.size() > 1 ? std::to_string(count) + " × " + cause : cause);
    record.causes = words.size() == 1 ? words.front() : join_some(words, kCausesShown);
    records.push_back(std::move(record));
  }
  std::ranges::stable_sort(records, [](const HostRecord& a, const HostRecord& b) {
    return std::pair(a.failures, a.kept) > std::pair(b.failures, b.kept);
  });
  return records;
}

std::string HostRecord::text() const {
  return counted(failures, "failure") + " in " + std::to_string(kHistoryWindow.count()) + " days (" + causes +
         ')';
}

std::string history_text(const std::vector<HostRecord>& records, const std::string& directory) {
  if (records.empty()) return "no failures of hosts in " + one_line(directory) + '\n';
  TextTable table;
  table.add({"host", std::to_string(kHistoryWindow.count()) + " days",
             std::to_string(kHistoryKept.count()) + " days", "causes", "last", "state"});
  for (const HostRecord& record : records)
    table.add({record.host, std::to_string(record.failures), std::to_string(record.kept), record.causes,
               utc_text(record.last), record.is_bad() ? "bad" : ""});
  table.omit_empty_columns();
  return table.text();
}

std::string history_json(const std::vector<HostRecord>& records, const std::string& directory) {
  OrderedJson json{{"format", 1},
                   {"directory", directory},
                   {"window_days", kHistoryWindow.count()},
                   {"hosts", OrderedJson::array()}};
  for (const HostRecord& record : records)
    json["hosts"].push_back({{"host", record.host},
                             {"failures", record.failures},
                             {"hardware", record.hardware},
                             {"failures_kept", record.kept},
                             {"causes", record.causes},
                             {"last", utc_text(record.last)},
                             {"bad", record.is_bad()}});
  return json_line(json, 2);
}

}  // namespace ddp::launcher
