#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::rendezvous {

/// A worker's end of DDPLAUNCH_CONTROL (docs/developers/worker_protocol.md): it receives attempts and reports
/// progress. Its own thread reads and writes the socket, so a revoke is seen while the worker computes or
/// waits. Steps are sent at most ten times a second, at no cost for the caller of at().
///
/// The worker repeats this sequence:
///   next_attempt() → join the others → ready() → at(…) for each step and phase; when a call of the
///   communicator fails or interrupt() is readable: failed(…) (unless revoked already), await_revoke(),
///   revoked(step).
/// Calls come from one thread, at() from any.
class WorkerClient {
 public:
  /// Connects and sends the hello. `control`: the value of DDPLAUNCH_CONTROL, "unix:PATH". Errors: kUsage
  /// (another form), kUnreachable (no listener at that path).
  static Result<std::unique_ptr<WorkerClient>> connect(const std::string& control, bool rejoin, bool sharded);
  ~WorkerClient();
  WorkerClient(const WorkerClient&) = delete;
  WorkerClient& operator=(const WorkerClient&) = delete;

  /// Readable from the revoke of the present attempt, or from the end of the link, until the next attempt is
  /// taken. A caller that waits for a peer must watch it, but must not read from it. Valid as long as this
  /// object.
  int interrupt() const;

  /// Waits for the next attempt's order without a time limit. Attempts that were revoked before they were
  /// taken are skipped. The thread has answered these revokes at once, with the state that the worker
  /// reported when it left the previous attempt (none before the first). Errors: kLinkLost (the agent is
  /// gone), kCancelled (a stop was ordered).
  Result<AttemptOrder> next_attempt();
  void ready();
  /// Reports progress: `step` steps are complete, and `phase` (a text that lives forever) is the present
  /// activity. Each call counts as activity. `loss`: of the last step; not finite: not reported. `waited`:
  /// seconds since the worker's start in which it waited for others, if it measures them.
  void at(std::uint64_t step, const char* phase, double loss = std::numeric_limits<double>::quiet_NaN(),
          double waited = 0);
  /// Reports that a call to other ranks failed, as evidence for the agent. `peers` are ranks of the present
  /// attempt.
  void failed(const std::string& error, const std::vector<std::uint32_t>& peers);
  /// Waits for the revoke of the present attempt. Errors: kTimeout (no order came), kLinkLost, kCancelled;
  /// the worker then ends with its own error.
  Result<RevokeOrder> await_revoke(std::chrono::milliseconds timeout = kOrderTime);
  /// Answers the revoke: this process has no activity left in the attempt. `step`: step of the held state;
  /// unset: no state is held.
  void revoked(std::optional<std::uint64_t> step);

 private:
  struct Shared;
  explicit WorkerClient(std::shared_ptr<Shared> shared);
  std::shared_ptr<Shared> shared_;
};

}  // namespace ddp::rendezvous
