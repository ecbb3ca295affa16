#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ddp::launcher {

/// Names ranks that are slower than the others while a job runs (sans-IO; docs/users/hang.md). What counts is
/// the time of a rank's own: in a training whose ranks wait for each other in each step, all steps take
/// equally long. Times are of one monotonic clock.
class SlowRanks {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr double kSlower = 1.5;        ///< times the median: the rank is slow
  static constexpr double kRecovered = 1.25;    ///< times the median: it is slow no longer below this
  static constexpr std::uint64_t kWindow = 10;  ///< steps of which the mean counts; two windows must agree,
                                                ///< since a checkpoint or an evaluation is in one of them
  static constexpr double kLeast = 0.005;       ///< seconds: smaller differences are noise
  static constexpr std::chrono::minutes kSilence{10};  ///< before a rank is named again
  static constexpr std::size_t kMostNamed = 8;         ///< in one check, each in a line of its own

  /// All ranks start anew.
  void begin_attempt() {
    ranks_.clear();
    waits_known_ = false;
  }
  /// The rank completed `steps` (at least 1). `own`: the seconds that they took, without `waited`, those that
  /// it waited for other ranks; 0: it reports none.
  void add(std::uint32_t rank, std::uint64_t steps, double own, double waited);

  struct Change {
    std::uint32_t rank = 0;
    bool slow = true;  ///< false: it no longer is
    std::string text;  ///< "rank 5 on gpu02 is slow: …"; empty: a change that only counts
  };
  /// Returns the host of a rank.
  using HostOf = std::function<std::string(std::uint32_t rank)>;
  /// Returns what is known of the rank's node that slows ranks down, in words that stay while it stays;
  /// empty: nothing.
  using FactsOf = std::function<std::string(std::uint32_t rank)>;
  /// Compares all ranks. Costs a walk through them.
  std::vector<Change> check(Time now, const HostOf& host_of, const FactsOf& facts_of);

 private:
  struct Rank {
    std::uint64_t steps = 0;  ///< of the window that is not full
    double own = 0;
    std::uint64_t windows = 0;
    double latest = 0, before = 0;  ///< means of the last two full windows
    bool slow = false;
    bool named = false;
    Time named_at{0};
    std::string facts;  ///< when it was named
  };
  std::map<std::uint32_t, Rank> ranks_;
  bool waits_known_ = false;  ///< some rank has reported that it waited
};

}  // namespace ddp::launcher
