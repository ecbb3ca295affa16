#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/protocol/worker_messages.h"

namespace ddp::launcher {

/// A worker's process, which may live through several attempts.
struct WorkerProcess {
  pid_t pid = 0;
  std::uint32_t start_attempt = 0;    ///< attempt in which it was started
  std::uint64_t started_ns = 0;       ///< the node's CLOCK_MONOTONIC
  bool can_rejoin = false;            ///< it said so
  bool ready = false;                 ///< it takes part in the present attempt
  bool answered = false;              ///< it has let go of the present attempt
  std::optional<std::uint64_t> held;  ///< with that: the step of the state that it holds
  std::optional<std::string> killed;  ///< by a revoke: why, in words for the user; empty: it held nothing
};

/// What the agent knows of the processes of its node's workers, by local rank (sans-IO;
/// docs/worker_protocol.md): who lives, who takes part, who has let go, and what of that the master has been
/// told.
class WorkerProcesses {
 public:
  using Map = std::map<std::uint32_t, WorkerProcess>;

  /// Another attempt: nobody takes part in it yet.
  void begin_attempt();
  void started(std::uint32_t local, WorkerProcess process) { processes_[local] = std::move(process); }
  void ended(std::uint32_t local) { processes_.erase(local); }
  void greeted(std::uint32_t local, bool can_rejoin);
  void ready(std::uint32_t local);
  void answered(std::uint32_t local, std::optional<std::uint64_t> held);
  void kill(std::uint32_t local, std::string why);

  bool is_alive(std::uint32_t local) const { return processes_.count(local) != 0; }
  bool none() const { return processes_.empty(); }
  const Map& all() const { return processes_; }
  /// Why a revoke killed it; null: none did.
  const std::string* killed(std::uint32_t local) const;

  /// True once in an attempt: when all that live have said that they can live on, or are ready.
  bool take_greeted_change();
  bool take_ready_change();

  /// Who has neither let go nor been killed.
  std::vector<std::uint32_t> unanswered() const;
  std::vector<std::uint32_t> dying() const;  ///< killed, not ended yet
  std::vector<rendezvous::Survivor> survivors() const;

 private:
  WorkerProcess* find(std::uint32_t local);

  Map processes_;
  bool greeted_reported_ = false;
  bool ready_reported_ = false;
};

}  // namespace ddp::launcher
