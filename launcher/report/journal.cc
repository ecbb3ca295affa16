#include "launcher/report/journal.h"

#include "base/exit_status.h"
#include "launcher/report/report_json.h"

namespace ddp::launcher {
namespace {

using Kind = JournalEvent::Kind;

/// Limit of a reason. An error message may quote the output of a node.
constexpr std::size_t kReasonBytes = 1000;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kJobStarted:
      return "job_started";
    case Kind::kJobEnded:
      return "job_ended";
    case Kind::kNodeJoined:
      return "node_joined";
    case Kind::kNodeAbsent:
      return "node_absent";
    case Kind::kNodeLost:
      return "node_lost";
    case Kind::kNodeReplaced:
      return "node_replaced";
    case Kind::kAttemptStarted:
      return "attempt_started";
    case Kind::kAttemptRunning:
      return "attempt_running";
    case Kind::kAttemptStopping:
      return "attempt_stopping";
    case Kind::kAttemptEnded:
      return "attempt_ended";
    case Kind::kRankExited:
      return "rank_exited";
    case Kind::kHangFound:
      return "hang_found";
    case Kind::kHangOver:
      return "hang_over";
    case Kind::kSignal:
      return "signal";
  }
  return "";
}

template <class T>
OrderedJson number_or_null(const std::optional<T>& number) {
  return number ? OrderedJson(*number) : OrderedJson();
}

}  // namespace

std::string journal_line(const JournalEvent& event, std::uint64_t id,
                         std::chrono::system_clock::time_point time) {
  OrderedJson line{{"id", id},
                   {"time", utc_text(time)},
                   {"event", name_of(event.kind)},
                   {"attempt", number_or_null(event.attempt)},
                   {"node", text_or_null(event.node)},
                   {"rank", number_or_null(event.rank)},
                   {"reason", text_or_null(event.reason.substr(0, kReasonBytes))}};
  if (event.kind == Kind::kJobStarted) {
    line["format"] = kJournalFormat;
    line["job"] = event.job;
  }
  if (event.kind == Kind::kJobEnded || event.kind == Kind::kRankExited)
    line["exit_code"] = number_or_null(event.exit_code);
  if (event.kind == Kind::kSignal || event.kind == Kind::kRankExited)
    line["signal"] = event.signal == 0 ? OrderedJson() : OrderedJson(signal_name(event.signal));
  if (event.kind == Kind::kAttemptStopping) line["failure"] = event.failure;
  if (event.kind == Kind::kAttemptStarted) {
    line["nodes"] = OrderedJson::array();
    for (const JournalEvent::AttemptNode& node : event.nodes)
      line["nodes"].push_back({{"node", node.node}, {"first_rank", node.first_rank}, {"ranks", node.ranks}});
  }
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
}

}  // namespace ddp::launcher
