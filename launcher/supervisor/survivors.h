#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/report/exit_report.h"
#include "launcher/supervisor/job_events.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

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
  bool have_all(std::uint32_t first, std::uint32_t count) const { return ended(first, count) == count; }
  /// Returns how many of `count` ranks from `first` have ended.
  std::uint32_t ended(std::uint32_t first, std::uint32_t count) const {
    return static_cast<std::uint32_t>(
        std::distance(ranks_.lower_bound(first), ranks_.lower_bound(first + count)));
  }
  /// Returns how many of `count` ranks from `first` have started and not ended.
  std::uint32_t running(std::uint32_t first, std::uint32_t count) const {
    return static_cast<std::uint32_t>(
        std::count_if(started_.lower_bound(first), started_.lower_bound(first + count),
                      [this](std::uint32_t rank) { return !ranks_.contains(rank); }));
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

/// The master's knowledge of workers that survive an attempt (sans-IO; docs/developers/worker_protocol.md):
/// whether the workers of this job can, whether all take part in the attempt yet, and which peers they report
/// as unreachable. Nodes are given as participants of the attempt.
class Survivors {
 public:
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC
  /// A rank that cannot reach another reports this before the death that explains it is known. Without a
  /// death the attempt is given up after this time.
  static constexpr std::chrono::seconds kTroubleTime{2};
  /// Time from a revoke to the SIGKILL of the workers that have not answered it.
  static constexpr std::chrono::seconds kRevokeTime{5};
  /// Trouble reports per rank and attempt that count, even if its agent passes on more.
  static constexpr unsigned kMostTroubles = 10;

  /// The rank whose worker holds the state from which an attempt continues.
  struct StateSource {
    std::uint32_t rank = 0;
    std::uint64_t step = 0;
  };

  // ---- between two attempts
  /// The workers of the attempt are asked to leave it.
  void revoked(Time now) { revoked_at_ = now; }
  /// These workers of `node`, which has `workers` local ranks, have left the attempt and wait for the next.
  /// Replaces what was known of the node.
  void wait(std::size_t node, std::vector<rendezvous::Survivor> survivors, std::uint32_t workers);
  /// No worker of the node waits any more.
  void forget(std::size_t node) { waiting_.erase(node); }

  // ---- an attempt
  /// The workers of an attempt are started, or informed of it. None waits any more. Workers that can survive
  /// must become ready within `limit`, or twice the slowest start so far if that is longer.
  void begin(const rendezvous::World& world, std::chrono::milliseconds limit, Time now);
  /// The lowest rank of the attempt whose worker holds the state of the most steps. Unset: no survivor holds
  /// any state.
  const std::optional<StateSource>& source() const { return source_; }
  /// Says that the training's state is lost, because the failure message announced survivors; empty: it is
  /// not. `attempt`: the one that has begun.
  std::string lost_state_text(std::uint32_t attempt) const;
  /// Says that all ranks are ready and continue from the source's state; empty: there is no source.
  std::string ready_text(std::uint32_t attempt, int world_size, Time now) const;
  /// Returns true if this shows that the workers of this job can survive.
  bool greeted(std::size_t participant);
  /// Returns true for the last participant that was awaited.
  bool ready(std::size_t participant, Time now);
  /// No worker runs on the participant any more, so it is not awaited.
  bool ended(std::size_t participant);
  /// A rank has reported that it cannot reach others. Returns false when this attempt has too many such
  /// reports from the rank, and the report is ignored.
  bool accepts_report(std::uint32_t rank);
  void in_trouble(std::string words, Time now);

  /// True once all workers of one attempt have said that they can survive. From then on attempts are revoked,
  /// not stopped.
  bool can_survive() const { return can_survive_; }
  std::optional<Time> deadline() const;
  /// Returns the participants whose workers are not all ready.
  const std::set<std::size_t>& unready() const { return unready_; }
  /// Returns the participants for which the others have waited in vain: at the limit not all of their workers
  /// have even greeted. Empty if that holds for all participants, since then no node is to blame.
  std::set<std::size_t> late(Time now) const;
  /// The limit to become ready as text, with its source.
  std::string limit_text() const;
  /// Returns why the attempt must be given up now, if it must. Call it at the deadline.
  std::optional<std::string> verdict(Time now) const;

 private:
  void find_source(const rendezvous::World& world);

  bool can_survive_ = false;
  std::size_t participants_ = 0;
  std::set<std::size_t> silent_;   ///< participants whose workers have not all greeted
  std::set<std::size_t> unready_;  ///< participants whose workers are not all ready
  std::optional<Time> ready_due_;  ///< set only when the workers can survive
  Time limit_{0};
  bool by_slowest_ = false;  ///< the limit comes from the slowest start
  Time began_{0};
  Time slowest_{0};                  ///< longest time from the begin of an attempt until all were ready
  std::optional<Time> reported_at_;  ///< of the first report; unused until the workers can survive
  std::optional<Time> trouble_due_;
  std::string trouble_;                                               ///< the first report
  std::map<std::uint32_t, unsigned> troubles_;                        ///< number of reports by rank
  std::map<std::size_t, std::vector<rendezvous::Survivor>> waiting_;  ///< by node: have no attempt
  std::optional<StateSource> source_;                                 ///< of the attempt
  Time revoked_at_{0};                                                ///< when the last attempt was revoked
};

}  // namespace ddp::launcher
