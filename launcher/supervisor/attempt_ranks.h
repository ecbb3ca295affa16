#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/report/exit_report.h"
#include "launcher/supervisor/job_events.h"

namespace ddp::launcher {

/// The ranks of one attempt that have started and ended (sans-IO), and when to say that some of them left the
/// others behind: those may wait forever for a rank that has left the training early.
class AttemptRanks {
 public:
  using Time = job::Time;
  /// Time from the first exit with 0 to the notice that other ranks still run.
  static constexpr std::chrono::seconds kNoticeTime{60};

  /// A rank runs. Returns true once: when all ranks of the world have started.
  bool start(std::uint32_t rank, int world_size) {
    return started_.insert(rank).second && started_.size() == static_cast<std::size_t>(world_size);
  }
  /// Returns false if the rank's end is known already.
  bool add(std::uint32_t rank) { return ranks_.insert(rank).second; }
  const std::set<std::uint32_t>& ranks() const { return ranks_; }
  /// Returns whether each of `count` ranks from `first` has ended.
  bool have_all(std::uint32_t first, std::uint32_t count) const {
    const auto ended = std::distance(ranks_.lower_bound(first), ranks_.lower_bound(first + count));
    return ended == static_cast<std::ptrdiff_t>(count);
  }

  /// A rank has exited with 0. `early`: all that did so before the attempt's stop.
  void left_early(const std::vector<EarlyExit>& early, Time now) {
    if (early.size() == 1) notice_at_ = now + kNoticeTime;
  }
  std::optional<Time> deadline() const { return notice_at_; }
  /// Returns the notice, once; empty: none is due, or no rank of the world runs.
  std::string take_notice(const std::vector<EarlyExit>& early, int world_size, Time now) {
    if (!notice_at_ || now < *notice_at_) return {};
    notice_at_.reset();
    if (ranks_.size() >= static_cast<std::size_t>(world_size)) return {};
    return std::to_string(early.size()) + " of " + std::to_string(world_size) + " ranks " +
           (early.size() == 1 ? "has" : "have") + " exited with 0 (" + early_ranks(early) +
           "); the others still run";
  }

 private:
  std::set<std::uint32_t> started_;
  std::set<std::uint32_t> ranks_;  ///< that have ended
  std::optional<Time> notice_at_;
};

}  // namespace ddp::launcher
