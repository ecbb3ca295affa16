#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/job/worker_env.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::launcher {

/// The messages of workers, by their local rank. Called on the loop thread.
class WorkerMessageEvents {
 public:
  virtual ~WorkerMessageEvents() = default;
  virtual void worker_said(std::uint32_t local_rank, const rendezvous::WorkerHello& hello) = 0;
  virtual void worker_said(std::uint32_t local_rank, const rendezvous::WorkerStep& step) = 0;
  /// A report to DDPLAUNCH_METRICS.
  virtual void worker_reported(std::uint32_t local_rank, const rendezvous::WorkerStep& step) = 0;
  virtual void worker_said(std::uint32_t local_rank, const rendezvous::WorkerTrouble& trouble) = 0;
  virtual void worker_said(std::uint32_t local_rank, const rendezvous::WorkerRevoked& answer) = 0;
  virtual void worker_said(std::uint32_t local_rank, const rendezvous::WorkerReady& ready) = 0;
  /// The worker's connection has ended, usually with its process; else its steps are unknown from here on. Or
  /// the worker has finished its part; the end of its connection follows.
  virtual void worker_unlinked(std::uint32_t local_rank) = 0;
  /// A problem that the user should know, once for each kind: a broken line, a message about another attempt.
  virtual void worker_said(std::uint32_t local_rank, const rendezvous::WorkerMisbehaved& misbehavior) = 0;
};

/// The agent's end of the worker protocol (docs/developers/worker_protocol.md): a private directory (0700)
/// with two sockets for each worker process. Only processes of our own uid may connect, and no other user may
/// enter the directory. A worker that never connects is no error. No call waits: deadlines are the owner's
/// task. Loop thread. An event may call any function except the destructor.
///
/// Messages of a process count from its hello to its end. Messages about another attempt, or out of turn,
/// have no effect.
class WorkerListener {
 public:
  /// `events` must outlive this object.
  WorkerListener(asio::any_io_executor executor, WorkerMessageEvents& events);
  ~WorkerListener();  ///< closes all connections, removes the directory
  WorkerListener(const WorkerListener&) = delete;
  WorkerListener& operator=(const WorkerListener&) = delete;

  /// Makes the directory in `base` (a TMPDIR). Uses /tmp if `base` is empty or not writable, or would make
  /// the path too long for a socket.
  Result<> open(const std::string& base);
  const std::string& directory() const { return directory_; }

  /// Call before a process is started as `local_rank`: returns its sockets. The previous process of this rank
  /// is forgotten.
  Result<WorkerSockets> expect(std::uint32_t local_rank);
  /// Returns WorkerSockets::server of the rank's process; empty: it has none.
  std::string server(std::uint32_t local_rank) const;
  /// Call when the process was started: begins to listen for it.
  void started(std::uint32_t local_rank);
  /// Call when the process has ended: handles what it has sent and nobody has read yet.
  void read_last_words(std::uint32_t local_rank);
  /// Call when the process has ended or no longer matters.
  void forget(std::uint32_t local_rank);

  /// Both orders are sent at once, or as soon as the worker has sent its hello.
  void begin(std::uint32_t local_rank, rendezvous::AttemptOrder order);
  void revoke(std::uint32_t local_rank, rendezvous::RevokeOrder order);
  /// Sent to all workers that have sent a hello, and to others when they do.
  void stop(const rendezvous::StopOrder& order);

 private:
  struct Worker;
  std::shared_ptr<Worker> find(std::uint32_t local_rank) const;

  asio::any_io_executor executor_;
  WorkerMessageEvents& events_;
  std::string directory_;
  UniqueFd in_use_;           ///< its lock: no other agent takes the directory for stale
  std::uint64_t serial_ = 0;  ///< makes the sockets of all processes differ
  std::map<std::uint32_t, std::shared_ptr<Worker>> workers_;
};

}  // namespace ddp::launcher
