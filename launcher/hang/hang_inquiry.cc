#include "launcher/hang/hang_inquiry.h"

#include <utility>

namespace ddp::launcher {
namespace {

std::vector<std::uint32_t> counts(const std::vector<HangInquiry::NodePart>& nodes) {
  std::vector<std::uint32_t> counts;
  for (const HangInquiry::NodePart& node : nodes)
    counts.push_back(node.ranks);
  return counts;
}

}  // namespace

HangInquiry::HangInquiry(std::chrono::milliseconds timeout, std::vector<NodePart> nodes, Time now)
    : nodes_(std::move(nodes)) {
  if (timeout.count() > 0) judge_ = HangJudge(timeout, counts(nodes_), now);
}

void HangInquiry::rank_ended(std::size_t node, std::uint32_t rank, Time now) {
  if (ended_.insert(rank).second) judge_.rank_ended(node, now);
}

void HangInquiry::node_gone(std::size_t node, Time now) {
  judge_.node_gone(node, now);
  asked_.erase(node);
}

std::vector<std::size_t> HangInquiry::begin(Time now) {
  quiet_for_ = now - judge_.last_life();
  report_ = HangReport();
  asked_.clear();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!judge_.has_ranks(i)) continue;
    asked_.insert(i);
    for (std::uint32_t local = 0; local < nodes_[i].ranks; ++local) {
      const std::uint32_t rank = nodes_[i].first_rank + local;
      if (ended_.count(rank) == 0) report_.expect(rank, nodes_[i].host);
    }
  }
  return {asked_.begin(), asked_.end()};
}

void HangInquiry::answer(std::size_t node, const rendezvous::Inspection& inspection) {
  if (inspection.last) {
    asked_.erase(node);
  } else {
    report_.add(inspection.rank, nodes_[node].host, inspection.state);
    report_.add_stacks(inspection.rank, inspection.text);
    if (inspection.steps) report_.add_step(inspection.rank, inspection.step);
  }
}

std::string HangInquiry::text() const {
  return "the job hung: " + report_.text(quiet_for_);
}

}  // namespace ddp::launcher
