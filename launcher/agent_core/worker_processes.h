#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// A worker's process, which may survive several attempts.
struct WorkerProcess {
  pid_t pid = 0;
  std::uint32_t start_attempt = 0;    ///< attempt in which it was started
  std::uint64_t started_ns = 0;       ///< the node's CLOCK_MONOTONIC
  bool can_rejoin = false;            ///< it has announced that it supports rejoining, and is connected
  bool ready = false;                 ///< it takes part in the current attempt
  bool answered = false;              ///< it has left the current attempt
  std::optional<std::uint64_t> held;  ///< with `answered`: the step of the state that it holds
  std::optional<std::string> killed;  ///< why a revoke killed it; empty text: it could not rejoin
};

/// The agent's record of its workers' processes by local rank (sans-IO; docs/developers/worker_protocol.md):
/// which are alive, take part or have left the attempt, and which of that the master knows.
class WorkerProcesses {
 public:
  using Map = std::map<std::uint32_t, WorkerProcess>;

  /// Starts another attempt, in which no worker takes part yet.
  void begin_attempt();
  void started(std::uint32_t local, WorkerProcess process);
  void ended(std::uint32_t local) { processes_.erase(local); }
  void greeted(std::uint32_t local, bool can_rejoin);
  void ready(std::uint32_t local);
  void answered(std::uint32_t local, std::optional<std::uint64_t> held);
  void kill(std::uint32_t local, std::string why);

  bool is_alive(std::uint32_t local) const { return processes_.count(local) != 0; }
  bool none() const { return processes_.empty(); }
  bool can_rejoin(std::uint32_t local) const { return processes_.at(local).can_rejoin; }  ///< of a live one
  const Map& all() const { return processes_; }
  /// Returns why a revoke killed the worker; null if none did.
  const std::string* killed(std::uint32_t local) const;

  /// True once per attempt: when all live workers can rejoin (greeted), or take part (ready).
  bool take_greeted_change();
  bool take_ready_change();

  /// Workers that have neither left the attempt nor been killed.
  std::vector<std::uint32_t> unanswered() const;
  std::vector<std::uint32_t> dying() const;  ///< killed, but not ended yet
  std::vector<rendezvous::Survivor> survivors() const;

 private:
  WorkerProcess* find(std::uint32_t local);

  Map processes_;
  bool greeted_reported_ = false;
  bool ready_reported_ = false;
};

}  // namespace ddp::launcher
