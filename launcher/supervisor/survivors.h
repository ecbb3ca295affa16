#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/membership/slot_table.h"
#include "rendezvous/protocol/worker_messages.h"

namespace ddp::launcher {

/// What the master knows of workers that live through attempts (sans-IO; docs/worker_protocol.md): whether
/// this job's can, whether all take part in the attempt yet, and what they say of peers that they cannot
/// reach. Nodes are their parts in the attempt.
class Survivors {
 public:
  using Time = std::chrono::nanoseconds;  ///< the master's CLOCK_MONOTONIC
  /// A rank that cannot reach another tells of it before the death that explains it is known. Without a death
  /// the attempt is given up after so long.
  static constexpr std::chrono::seconds kTroubleTime{2};
  /// From a revoke to the SIGKILL of who has not answered it.
  static constexpr std::chrono::seconds kRevokeTime{5};
  /// Troubles of one rank in one attempt that are heeded, whatever its agent lets through.
  static constexpr unsigned kMostTroubles = 10;

  /// The workers of an attempt are started, or told of it. `limit`: for all to be ready, where they can live
  /// on.
  void begin(std::size_t parts, std::chrono::milliseconds limit, Time now);
  void greeted(std::size_t participant);
  /// True when this was the last one that was awaited.
  bool ready(std::size_t participant);
  /// No worker runs there any more: it is not awaited.
  bool ended(std::size_t participant) { return ready(participant); }
  /// A rank has said that it cannot reach others. False: so often in this attempt that it is ignored.
  bool heeds(std::uint32_t rank);
  void in_trouble(std::string words, Time now);

  /// All workers of one attempt have said that they can: from then on attempts are revoked, not stopped.
  bool can_survive() const { return can_survive_; }
  std::optional<Time> deadline() const;
  /// Whose workers are not all ready.
  const std::set<std::size_t>& unready() const { return unready_; }
  /// Why the attempt is to be given up now, in words. To be asked at the deadline.
  std::optional<std::string> verdict(Time now) const;

  /// The lowest rank of `world` whose worker holds the state of the most steps; `waiting` are the survivors
  /// of each part. Unset: nobody holds any.
  struct StateSource {
    std::uint32_t rank = 0;
    std::uint64_t step = 0;
  };
  static std::optional<StateSource> source(const rendezvous::World& world,
                                           const std::vector<std::vector<rendezvous::Survivor>>& waiting);

 private:
  bool can_survive_ = false;
  std::set<std::size_t> silent_;   ///< parts whose workers have not all greeted
  std::set<std::size_t> unready_;  ///< and those that are not ready
  std::optional<Time> ready_due_;  ///< only where they can live on
  std::chrono::milliseconds limit_{0};
  std::optional<Time> reported_at_;  ///< of the first trouble; nothing is due before they can live on
  std::optional<Time> trouble_due_;
  std::string trouble_;                         ///< the first
  std::map<std::uint32_t, unsigned> troubles_;  ///< of each rank
};

}  // namespace ddp::launcher
