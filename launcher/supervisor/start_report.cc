#include "launcher/supervisor/start_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/format_text.h"
#include "launcher/supervisor/start_messages.h"

namespace ddp::launcher {
namespace {

using std::chrono::seconds;

}  // namespace

void StartNotice::begin(Time now) {
  started_at_ = now;
  check_at_ = now + kLongStart;
  log_after_ = kLongStart;
}

std::optional<job::Waiting> StartNotice::show(const std::string& awaited, Time now) {
  check_at_ = now + seconds(1);
  if (awaited.empty()) return {};
  const bool due = now - started_at_ >= log_after_;
  while (due && log_after_ <= now - started_at_)
    log_after_ += std::min<Time>(2 * log_after_, seconds(60));
  shown_ = true;
  return job::Waiting{"waiting for " + awaited, due};
}

std::optional<job::Waiting> StartNotice::end() {
  const bool removes = check_at_ && shown_;
  check_at_.reset();
  return removes ? std::optional(job::Waiting{}) : std::nullopt;
}

std::string missing_step(const JobSpec& spec, const NodeTable& nodes, const AttemptStart* start,
                         std::size_t index) {
  const NodeTable::Node& node = nodes[index];
  const bool setup = !spec.setup.empty() || !spec.hosts[index].setup.empty();
  if (node.state == NodeTable::State::kConnecting) return "waiting for the agent's hello";
  if (node.state == NodeTable::State::kUp) return setup ? "running --setup" : "checking the job";
  return node.participant && start != nullptr ? start->awaited_step(*node.participant) : "";
}

std::string awaited_text(const JobSpec& spec, const NodeTable& nodes, const AttemptStart* start) {
  std::map<std::string, std::vector<std::string>> by_step;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeTable::Node& node = nodes[i];
    const std::string step =
        node.state == NodeTable::State::kConnecting ? node.start_step : missing_step(spec, nodes, start, i);
    if (!step.empty()) by_step[step].push_back(node.name);
  }
  return awaited_text(by_step, nodes.size());
}

Error late_error(const JobSpec& spec, const std::string& step) {
  return Error{ErrorCode::kTimeout, "it was still " + step + " when the start limit of " +
                                        format_duration(spec.start_timeout) + " ran out (--start-timeout)"};
}

std::vector<std::pair<std::string, Error>> missing_nodes(const JobSpec& spec, const NodeTable& nodes,
                                                         bool at_start, bool late) {
  std::vector<std::pair<NodeTable::Time, std::pair<std::string, Error>>> missed;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeTable::Node& node = nodes[i];
    if ((node.is_member() && !node.lost) || (!at_start && !node.participant)) continue;
    if (!node.trouble && !late) continue;
    Error error =
        node.trouble ? node.trouble->error : late_error(spec, missing_step(spec, nodes, nullptr, i));
    if (!at_start) {
      error.code = ErrorCode::kLinkLost;
      error.text +=
          "; no node replaced it within " + format_duration(spec.start_timeout) + " (--start-timeout)";
    }
    missed.push_back(
        {node.trouble ? node.trouble->at : NodeTable::Time::max(), {node.name, std::move(error)}});
  }
  std::ranges::stable_sort(missed, {}, [](const auto& entry) { return entry.first; });
  std::vector<std::pair<std::string, Error>> sorted;
  for (auto& entry : missed)
    sorted.push_back(std::move(entry.second));
  return sorted;
}

std::string size_text(const rendezvous::World& world) {
  const std::size_t nodes = world.assignments.size();
  const int first = world.assignments[0].local_world_size;
  const bool equal = std::ranges::all_of(
      world.assignments, [first](const auto& ranks) { return ranks.local_world_size == first; });
  const int workers = equal ? first : world.world_size;
  return counted(nodes, "node") + (equal ? " × " : ", ") + counted(workers, "worker");
}

}  // namespace ddp::launcher
