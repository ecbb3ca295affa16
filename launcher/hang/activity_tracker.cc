#include "launcher/hang/activity_tracker.h"

#include <algorithm>
#include <set>

#include "base/require.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShortestPeriod{200};
constexpr milliseconds kLongestPeriod{5000};
/// The kernel counts in clock ticks of 10 ms, so less than three of them may be rounding.
constexpr milliseconds kSmallestBurst{30};
constexpr milliseconds kLargestBurst{100};
constexpr std::size_t kPacemakers = 16;
constexpr std::chrono::seconds kLongestBetweenWholes{60};
/// A sample that is later than two periods plus this was not delayed by load.
constexpr std::chrono::seconds kSampleDelayed{1};

}  // namespace

ActivityTracker::ActivityTracker(milliseconds timeout, Time now)
    : timeout_(timeout),
      burst_(std::clamp<Time>(Time(timeout) / kIdleShare, kSmallestBurst, kLargestBurst)),
      last_whole_(now),
      last_activity_(now),
      last_sample_(now) {}

milliseconds ActivityTracker::period(milliseconds timeout) {
  return std::clamp(timeout / 8, kShortestPeriod, kLongestPeriod);
}

void ActivityTracker::record_activity(Time now) {
  last_activity_ = std::max(last_activity_, now);
}

void ActivityTracker::begin_sample(Time now) {
  const auto expected = period(std::chrono::duration_cast<milliseconds>(timeout_));
  if (now - last_sample_ > 2 * expected + kSampleDelayed) record_activity(now);
  last_sample_ = now;
}

bool ActivityTracker::fill(Meter& meter, const ProcessTime& process, Time now) const {
  meter.level += std::max(process.cpu - meter.cpu, Time(0));
  meter.level = std::max(meter.level - (now - meter.seen) / kIdleShare, Time(0));
  meter.cpu = process.cpu;
  meter.seen = now;
  if (meter.level < burst_) return false;
  meter.level = Time(0);
  return true;
}

bool ActivityTracker::add_sample(std::span<const ProcessTime> processes, bool whole, Time now) {
  std::vector<pid_t> at_work;
  std::set<pid_t> found;
  bool traced = false;
  const std::uint64_t newest = newest_;
  for (const ProcessTime& process : processes) {
    auto meter = meters_.find(process.pid);
    if (meter == meters_.end() || meter->second.started != process.started) {
      if (!whole && !process.leader) continue;
      // All CPU time of a new process counts, over the time since the last whole sample, its earliest
      // possible start. An older one has left the trees and come back: what it used before is not activity of
      // now.
      const bool is_new = process.started >= newest;
      meter = meters_
                  .insert_or_assign(process.pid, Meter{process.started, is_new ? last_whole_ : now,
                                                       is_new ? Time(0) : process.cpu, Time(0)})
                  .first;
    }
    found.insert(process.pid);
    if (whole) newest_ = std::max(newest_, process.started);
    if (fill(meter->second, process, now)) at_work.push_back(process.pid);
    traced = traced || process.traced;
  }
  if (whole) {
    last_whole_ = now;
    sampled_whole_ = true;
    std::erase_if(meters_, [&found](const auto& entry) { return !found.contains(entry.first); });
    std::erase_if(pacemakers_, [this](pid_t pid) { return !meters_.contains(pid); });
    DDP_REQUIRE(meters_.size() <= found.size(), meters_.size(), found.size());
  }
  if (at_work.empty() && !traced) return false;
  at_work.resize(std::min(at_work.size(), kPacemakers));
  pacemakers_ = std::move(at_work);
  record_activity(now);
  return true;
}

bool ActivityTracker::whole_due(Time now) const {
  return !sampled_whole_ || now - last_whole_ >= std::min<Time>(timeout_ / 4, kLongestBetweenWholes);
}

std::optional<ActivityTracker::QuietChange> ActivityTracker::settle(Time now) {
  const bool quiet = now - last_activity_ >= timeout_ / 2;
  if (quiet == reported_quiet_) return std::nullopt;
  reported_quiet_ = quiet;
  return QuietChange{quiet, quiet ? last_activity_ : Time(0)};
}

}  // namespace ddp::launcher
