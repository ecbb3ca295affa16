#include "launcher/hang/hang_judge.h"

#include <algorithm>

#include "launcher/hang/hang_watch.h"

namespace ddp::launcher {
namespace {

/// On its way from a node to us.
constexpr std::chrono::milliseconds kTravel{1000};
/// Less than kTravel, or messages that came while we stood still would be overlooked.
constexpr std::chrono::milliseconds kOverslept{800};

}  // namespace

HangJudge::HangJudge(std::chrono::milliseconds timeout, std::vector<std::uint32_t> ranks, Time now)
    : timeout_(timeout), margin_(HangWatch::period(timeout) + kTravel), last_life_(now) {
  for (const std::uint32_t count : ranks)
    nodes_.push_back({count, false});
}

void HangJudge::quiet(std::size_t node, Time since) {
  if (node >= nodes_.size()) return;
  nodes_[node].quiet = true;
  last_life_ = std::max(last_life_, since);
}

void HangJudge::alive(std::size_t node) {
  if (node < nodes_.size()) nodes_[node].quiet = false;
}

void HangJudge::rank_ended(std::size_t node, Time now) {
  if (node >= nodes_.size() || nodes_[node].ranks == 0) return;
  --nodes_[node].ranks;
  last_life_ = std::max(last_life_, now);
}

void HangJudge::node_gone(std::size_t node, Time now) {
  if (node >= nodes_.size() || nodes_[node].ranks == 0) return;
  nodes_[node].ranks = 0;
  last_life_ = std::max(last_life_, now);
}

std::optional<HangJudge::Time> HangJudge::deadline() const {
  bool any = false;
  for (const Node& node : nodes_) {
    if (node.ranks == 0) continue;
    if (!node.quiet) return std::nullopt;
    any = true;
  }
  if (!any || timeout_ == Time(0)) return std::nullopt;
  return last_life_ + timeout_ + margin_;
}

bool HangJudge::hangs(Time now) {
  const auto due = deadline();
  if (!due || now < *due) return false;
  if (now - *due <= kOverslept) return true;
  last_life_ = now;
  return false;
}

}  // namespace ddp::launcher
