#include "launcher/report/journal.h"

#include <cmath>

#include "base/exit_status.h"
#include "launcher/report/report_json.h"
#include "launcher/report/sample_history.h"

namespace ddp::launcher {
namespace {

using Kind = JournalEvent::Kind;

/// Limit of a reason. An error message may quote the output of a node.
constexpr std::size_t kReasonBytes = 1000;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kJobStarted: return "job_started";
    case Kind::kJobEnded: return "job_ended";
    case Kind::kNodeJoined: return "node_joined";
    case Kind::kNodeAbsent: return "node_absent";
    case Kind::kNodeLost: return "node_lost";
    case Kind::kNodeReplaced: return "node_replaced";
    case Kind::kAttemptStarted: return "attempt_started";
    case Kind::kAttemptRunning: return "attempt_running";
    case Kind::kAttemptStopping: return "attempt_stopping";
    case Kind::kAttemptEnded: return "attempt_ended";
    case Kind::kRankExited: return "rank_exited";
    case Kind::kLineMatched: return "line_matched";
    case Kind::kRankSlow: return "rank_slow";
    case Kind::kRankRecovered: return "rank_recovered";
    case Kind::kHangFound: return "hang_found";
    case Kind::kHangNamed: return "hang_named";
    case Kind::kHangOver: return "hang_over";
    case Kind::kSignal: return "signal";
  }
  return "";
}

OrderedJson common_keys(std::uint64_t id, std::chrono::system_clock::time_point time, const char* event,
                        const std::optional<std::uint32_t>& attempt) {
  return {{"format", kJournalFormat},    {"id", id},
          {"time", utc_text(time)},      {"event", event},
          {"attempt", or_null(attempt)}, {"node", OrderedJson()},
          {"rank", OrderedJson()},       {"reason", OrderedJson()}};
}

/// Three digits behind the point: lines are many.
OrderedJson short_number(bool is_known, double value) {
  return is_known ? OrderedJson(std::round(value * 1000) / 1000) : OrderedJson();
}

}  // namespace

std::string journal_line(const JournalEvent& event, std::uint64_t id,
                         std::chrono::system_clock::time_point time) {
  OrderedJson line = common_keys(id, time, name_of(event.kind), event.attempt);
  line["node"] = text_or_null(event.node);
  line["rank"] = or_null(event.rank);
  line["reason"] = text_or_null(event.reason.substr(0, kReasonBytes));
  if (event.kind == Kind::kJobStarted) line["job"] = event.job;
  if (event.kind == Kind::kHangNamed) line["hang"] = hang_json(event.hang);
  if (event.kind == Kind::kJobEnded || event.kind == Kind::kRankExited)
    line["exit_code"] = or_null(event.exit_code);
  if (event.kind == Kind::kSignal || event.kind == Kind::kRankExited)
    line["signal"] = event.signal == 0 ? OrderedJson() : OrderedJson(signal_name(event.signal));
  if (event.kind == Kind::kAttemptStopping) line["failure"] = event.failure;
  if (event.kind == Kind::kAttemptStarted) {
    line["nodes"] = OrderedJson::array();
    for (const JournalEvent::AttemptNode& node : event.nodes)
      line["nodes"].push_back({{"node", node.node}, {"first_rank", node.first_rank}, {"ranks", node.ranks}});
  }
  return json_line(line);
}

std::string sample_line(const HistoryPoint& point, std::uint64_t id,
                        std::chrono::system_clock::time_point time) {
  const JobUsage& usage = point.usage;
  const bool nodes = usage.nodes > 0, gpus = usage.gpus > 0;
  OrderedJson line = common_keys(id, time, "sample", point.attempt);
  line["step"] = or_null(point.step);
  line["step_s"] = or_null(point.step_seconds);
  line["loss"] = or_null(point.loss);
  line["goodput"] = short_number(true, point.goodput);
  line["cpu"] = short_number(nodes, usage.cpu);
  line["memory_used"] = short_number(nodes, usage.memory_used);
  line["gpu_busy"] = short_number(gpus, usage.gpu_busy);
  line["gpu_memory_used"] = short_number(gpus, usage.gpu_memory_used);
  line["network_in"] = short_number(nodes, usage.network_in);
  line["network_out"] = short_number(nodes, usage.network_out);
  line["infiniband_in"] = short_number(nodes, usage.infiniband_in);
  line["infiniband_out"] = short_number(nodes, usage.infiniband_out);
  line["disk_read"] = short_number(nodes, usage.disk_read);
  line["disk_written"] = short_number(nodes, usage.disk_written);
  return json_line(line);
}

}  // namespace ddp::launcher
