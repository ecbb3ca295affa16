#include "launcher/hang/hang_investigation.h"

#include <utility>

namespace ddp::launcher {
namespace {

std::vector<std::uint32_t> counts(const std::vector<HangInvestigation::NodeShare>& nodes) {
  std::vector<std::uint32_t> counts;
  for (const HangInvestigation::NodeShare& node : nodes)
    counts.push_back(node.ranks);
  return counts;
}

}  // namespace

HangInvestigation::HangInvestigation(std::chrono::milliseconds timeout, std::vector<NodeShare> nodes,
                                     Time now)
    : nodes_(std::move(nodes)) {
  if (timeout.count() > 0) detector_ = HangDetector(timeout, counts(nodes_), now);
}

void HangInvestigation::rank_ended(std::size_t node, std::uint32_t rank, Time now) {
  if (ended_.insert(rank).second) detector_.rank_ended(node, now);
}

void HangInvestigation::node_gone(std::size_t node, Time now) {
  detector_.node_gone(node, now);
  asked_.erase(node);
}

std::vector<std::size_t> HangInvestigation::begin(Time now) {
  quiet_for_ = now - detector_.last_activity();
  report_ = HangReport();
  asked_.clear();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!detector_.has_ranks(i)) continue;
    asked_.insert(i);
    for (std::uint32_t local = 0; local < nodes_[i].ranks; ++local) {
      const std::uint32_t rank = nodes_[i].first_rank + local;
      if (ended_.count(rank) == 0) report_.expect(rank, nodes_[i].host);
    }
  }
  return {asked_.begin(), asked_.end()};
}

void HangInvestigation::answer(std::size_t node, const rendezvous::Inspection& inspection) {
  if (inspection.last) {
    asked_.erase(node);
  } else {
    report_.add(inspection.rank, nodes_[node].host, inspection.state);
    report_.add_stacks(inspection.rank, inspection.text);
    if (inspection.steps) report_.add_step(inspection.rank, inspection.step);
  }
}

std::string HangInvestigation::text() const {
  return "the job hung: " + report_.text(quiet_for_);
}

}  // namespace ddp::launcher
