#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::rendezvous {

/// A worker's end of DDPLAUNCH_CONTROL (docs/worker_protocol.md): how it learns of attempts, and how it says
/// where it is. A thread of its own reads and writes the socket, so that a revoke is seen while the worker
/// computes or waits, and steps are told at most ten times a second without any cost for who makes them.
///
/// The worker's turn, again and again:
///   next_attempt() → join the others → ready() → at(…) for each step and phase; when a call of the
///   communicator fails or interrupt() is readable: failed(…) (unless revoked already), await_revoke(),
///   revoked(step).
/// Calls come from one thread, at() from any.
class WorkerLinkClient {
 public:
  /// `control`: the value of DDPLAUNCH_CONTROL, "unix:PATH". Says hello. Errors: kUsage (no such form),
  /// kUnreachable (nobody listens there).
  static Result<std::unique_ptr<WorkerLinkClient>> connect(const std::string& control, bool rejoin,
                                                           bool sharded);
  ~WorkerLinkClient();
  WorkerLinkClient(const WorkerLinkClient&) = delete;
  WorkerLinkClient& operator=(const WorkerLinkClient&) = delete;

  /// Readable from the revoke of the present attempt, or the end of the link, until the next attempt has been
  /// taken: to be watched by whoever waits for a peer. Nothing is to be read from it. Valid as long as this.
  int interrupt() const;

  /// Waits for the next attempt's order, as long as that takes. Attempts that were revoked before they were
  /// taken are skipped; the thread has answered them at once, with the state that the worker said to hold
  /// when it let go of the one before (none before the first). Errors: kLinkLost (the agent is gone),
  /// kCancelled (a stop was ordered).
  Result<AttemptOrder> next_attempt();
  void ready();
  /// Where this worker is: `step` steps are complete, and `phase` (a text that lives for ever) is what it
  /// does now. Each call counts as a sign of life.
  void at(std::uint64_t step, const char* phase);
  /// A call to the others failed; evidence for the agent. Ranks of the present attempt.
  void failed(const std::string& error, const std::vector<std::uint32_t>& peers);
  /// Waits for the revoke of the present attempt. Errors: kTimeout (no order came), kLinkLost, kCancelled:
  /// then the worker ends with its own error.
  Result<RevokeOrder> await_revoke(std::chrono::milliseconds timeout = kOrderTime);
  /// The answer: nothing of the attempt goes on here. `step`: of the state that is held; unset: none is.
  void revoked(std::optional<std::uint64_t> step);

 private:
  struct Shared;
  explicit WorkerLinkClient(std::shared_ptr<Shared> shared);
  std::shared_ptr<Shared> shared_;
};

}  // namespace ddp::rendezvous
