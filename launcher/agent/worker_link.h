#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::launcher {

/// What workers say, by their local rank. Called on the loop thread.
class WorkerLinkEvents {
 public:
  virtual ~WorkerLinkEvents() = default;
  virtual void worker_greeted(std::uint32_t local_rank, const rendezvous::WorkerHello& hello) = 0;
  virtual void worker_stepped(std::uint32_t local_rank, const rendezvous::WorkerStep& step) = 0;
  virtual void worker_in_trouble(std::uint32_t local_rank, const rendezvous::WorkerTrouble& trouble) = 0;
  virtual void worker_revoked(std::uint32_t local_rank, const rendezvous::WorkerRevoked& answer) = 0;
  virtual void worker_ready(std::uint32_t local_rank) = 0;
  /// Its connection has ended, mostly with the process; otherwise nothing more is heard of its steps.
  virtual void worker_unlinked(std::uint32_t local_rank) = 0;
  /// Something that a person should read, once for each kind: a broken line, a word of a foreign attempt.
  virtual void worker_misbehaved(std::uint32_t local_rank, std::string words) = 0;
};

/// The agent's end of the worker protocol (docs/worker_protocol.md): a directory of ours alone (0700) with
/// one socket for each worker process, to which processes of our own uid may connect. Who never connects is
/// no concern of this. Nothing here waits: deadlines are the owner's. Loop thread. Each of the calls may come
/// from within an event, but for the destructor.
///
/// What a process says counts from its hello to its end: words of another attempt, or out of turn, do
/// nothing.
class WorkerLink {
 public:
  /// `events` outlives this.
  WorkerLink(asio::any_io_executor executor, WorkerLinkEvents& events);
  ~WorkerLink();  ///< closes all, removes the directory
  WorkerLink(const WorkerLink&) = delete;
  WorkerLink& operator=(const WorkerLink&) = delete;

  /// Makes the directory, in `base` (a TMPDIR); in /tmp where `base` is empty, cannot be written to, or would
  /// make the path too long for a socket.
  Result<> open(const std::string& base);
  const std::string& directory() const { return directory_; }

  /// A process is about to be started as `local_rank`: its socket, as the value of DDPLAUNCH_CONTROL. The one
  /// before is forgotten.
  Result<std::string> expect(std::uint32_t local_rank);
  /// It has been started, and is listened to.
  void started(std::uint32_t local_rank);
  /// Its process has ended, or is not asked any more.
  void forget(std::uint32_t local_rank);

  /// Sent at once, or as soon as the worker has said hello.
  void begin(std::uint32_t local_rank, rendezvous::AttemptOrder order);
  void revoke(std::uint32_t local_rank, rendezvous::RevokeOrder order);
  /// To all that have said hello, and to who does so later.
  void stop(const rendezvous::StopOrder& order);

  /// It has said a hello of who can let go of an attempt, and is connected.
  bool can_rejoin(std::uint32_t local_rank) const;

 private:
  struct Worker;
  asio::any_io_executor executor_;
  WorkerLinkEvents& events_;
  std::string directory_;
  UniqueFd in_use_;           ///< its lock: no other agent takes it for stale
  std::uint64_t serial_ = 0;  ///< no two processes have the same socket
  std::map<std::uint32_t, std::shared_ptr<Worker>> workers_;
};

}  // namespace ddp::launcher
