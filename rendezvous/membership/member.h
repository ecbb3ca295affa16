#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/membership/node_lease.h"

namespace ddp::rendezvous {

/// The node's side of Membership (sans-IO). It decides which orders of the master are valid, which are too
/// late, and when the workers must be dead although nothing was ordered. The Agent drives a Member, and
/// starts and stops the workers.
///
/// The driver's duties: Membership's 1 to 3. After each step the driver also makes the keeper kill all
/// remaining processes at keeper_kills_at(), even if the agent no longer runs.
class Member {
 public:
  using Time = NodeLease::Time;

  // ---- events: orders of the master, and local ones
  struct Run {  ///< the workers of this attempt
    std::uint32_t attempt;
  };
  struct Stop {
    std::uint32_t attempt;
    Time grace;
  };
  struct Pinged {};
  struct MasterAsleep {};
  struct Leave {};
  struct LinkLost {};
  struct WorkersGone {  ///< all are reaped, after EndWorkers or without it
    std::uint32_t attempt;
  };
  struct Tick {};
  using Event = std::variant<Run, Stop, Pinged, MasterAsleep, Leave, LinkLost, WorkersGone, Tick>;

  // ---- actions
  struct StartWorkers {
    std::uint32_t attempt;
  };
  struct EndWorkers {  ///< TERM now, KILL after the grace; a repeated one with a shorter grace replaces it
    std::uint32_t attempt;
    Time grace;
    std::string reason;
  };
  struct SayEnded {  ///< send AttemptEnded to the master
    std::uint32_t attempt;
  };
  struct SayPong {};
  struct Quit {  ///< no worker runs: end the agent
    std::string reason;
  };
  using Action = std::variant<StartWorkers, EndWorkers, SayEnded, SayPong, Quit>;
  using Actions = std::vector<Action>;

  /// `grace`: from TERM to KILL when the master is lost. `now`: when the hello is sent.
  Member(Time lease, Time grace, Time now) : lease_(lease, now), grace_(grace) {}

  Actions step(const Event& event, Time now);
  std::optional<Time> deadline() const;
  const NodeLease& lease() const { return lease_; }
  /// Returns the end of the lease, plus the grace that a running agent then gives its workers. Unset: never.
  std::optional<Time> keeper_kills_at() const {
    return lease_.asleep() ? std::nullopt : std::optional(lease_.ends_at() + grace_);
  }
  bool running() const { return running_; }
  bool quitted() const { return quitted_; }

 private:
  void on(const Run& order, Time now);
  void on(const Stop& order, Time now);
  void on(const Pinged&, Time now);
  void on(const MasterAsleep&, Time now);
  void on(const Leave&, Time now);
  void on(const LinkLost&, Time now);
  void on(const WorkersGone& event, Time now);
  void on(const Tick&, Time now);
  void go(std::string reason, Time grace);

  NodeLease lease_;
  Time grace_;
  std::int64_t attempt_ = -1;  ///< the last one that was ordered to run or to stop
  bool running_ = false;
  bool quitted_ = false;
  std::optional<std::string> leaving_;  ///< reason; set while leaving
  Actions actions_;
};

}  // namespace ddp::rendezvous
