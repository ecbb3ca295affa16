#include "launcher/hang/hang_detector.h"

#include <algorithm>

#include "base/require.h"
#include "launcher/hang/activity_tracker.h"

namespace ddp::launcher {
namespace {

/// The longest expected time of a message from a node to the master.
constexpr std::chrono::milliseconds kTravel{1000};
/// A limit shorter than kTravel, since messages that arrived while the master was stopped would be overlooked
/// otherwise.
constexpr std::chrono::milliseconds kOverslept{800};

}  // namespace

HangDetector::HangDetector(std::chrono::milliseconds timeout, std::vector<std::uint32_t> ranks, Time now)
    : timeout_(timeout), margin_(ActivityTracker::period(timeout) + kTravel), last_activity_(now) {
  DDP_REQUIRE(timeout > Time(0), timeout.count());
  for (const std::uint32_t count : ranks)
    nodes_.push_back({count, false});
}

void HangDetector::quiet(std::size_t node, Time since) {
  if (node >= nodes_.size()) return;
  nodes_[node].quiet = true;
  last_activity_ = std::max(last_activity_, since);
}

void HangDetector::alive(std::size_t node) {
  if (node < nodes_.size()) nodes_[node].quiet = false;
}

void HangDetector::rank_ended(std::size_t node, Time now) {
  if (node >= nodes_.size() || nodes_[node].ranks == 0) return;
  --nodes_[node].ranks;
  last_activity_ = std::max(last_activity_, now);
}

void HangDetector::node_gone(std::size_t node, Time now) {
  if (node >= nodes_.size() || nodes_[node].ranks == 0) return;
  nodes_[node].ranks = 0;
  last_activity_ = std::max(last_activity_, now);
}

std::optional<HangDetector::Time> HangDetector::deadline() const {
  bool any = false;
  for (const Node& node : nodes_) {
    if (node.ranks == 0) continue;
    if (!node.quiet) return std::nullopt;
    any = true;
  }
  if (!any || timeout_ == Time(0)) return std::nullopt;
  return last_activity_ + timeout_ + margin_;
}

bool HangDetector::hangs(Time now) {
  const auto due = deadline();
  if (!due || now < *due) return false;
  if (now - *due <= kOverslept) return true;
  last_activity_ = now;
  return false;
}

}  // namespace ddp::launcher
