#include "launcher/hang/hang_investigation.h"

#include <utility>

#include "base/require.h"

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

void HangInvestigation::node_gone(std::size_t node, Time now) {
  detector_.node_gone(node, now);
  asked_.erase(node);
}

std::vector<std::size_t> HangInvestigation::begin(const std::set<std::uint32_t>& ended, Time now) {
  DDP_REQUIRE(!inspecting(), asked_.size());
  inspect_due_ = now + kInspectTime + kInspectSlack;
  last_activity_ = detector_.last_activity();
  quiet_for_ = now - last_activity_;
  report_ = HangReport();
  asked_.clear();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!detector_.has_ranks(i)) continue;
    asked_.insert(i);
    for (std::uint32_t local = 0; local < nodes_[i].ranks; ++local) {
      const std::uint32_t rank = nodes_[i].first_rank + local;
      if (ended.count(rank) == 0) report_.expect(rank, nodes_[i].host);
    }
  }
  return {asked_.begin(), asked_.end()};
}

void HangInvestigation::answer(std::size_t node, const rendezvous::Inspection& inspection) {
  DDP_REQUIRE(inspecting() && node < nodes_.size(), node, nodes_.size());
  if (inspection.last) {
    asked_.erase(node);
  } else {
    report_.add(inspection.rank, nodes_[node].host, inspection.state);
    report_.add_stacks(inspection.rank, inspection.text);
    if (inspection.steps) report_.add_step(inspection.rank, inspection.step);
  }
}

bool HangInvestigation::cancel() {
  return std::exchange(inspect_due_, std::nullopt).has_value();
}

std::string HangInvestigation::conclude(const std::string& files) {
  DDP_REQUIRE(inspecting(), asked_.size());
  inspect_due_.reset();
  hung_ = report_.behind();
  if (hung_.size() > 1) hung_.clear();
  std::string text =
      "the job hung: " + report_.text(quiet_for_) + "\nstacks and state of each rank: " + files;
  if (const std::string hint = report_.hint(); !hint.empty()) text += "\nhint: " + hint;
  return text;
}

}  // namespace ddp::launcher
