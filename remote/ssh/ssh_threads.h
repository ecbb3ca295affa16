#pragma once

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "base/asio.h"
#include "remote/ssh/ssh_session.h"

namespace ddp::remote {

/// The I/O threads of the SSH sessions, each with a loop of its own, and one more for logins through an
/// ssh-agent. Started when first needed. Used on the loop thread only, but for the sessions' own work.
class SshThreads {
 public:
  /// `count` I/O threads at most.
  explicit SshThreads(unsigned count);
  /// Closes every session, then ends the threads. No event of a session follows.
  ~SshThreads();
  SshThreads(const SshThreads&) = delete;
  SshThreads& operator=(const SshThreads&) = delete;

  /// Starts a session on one of the threads. It lives as long as it has something to wait for.
  std::weak_ptr<SshSession> start(SshTarget target, SshSession::SshSessionEvents events);
  /// Ends it, and drops the reference on its thread. Null is allowed.
  void close(std::shared_ptr<SshSession> session, SshSession::HangUp hang_up = SshSession::HangUp::kNo);

 private:
  struct Worker;
  void run(Worker& worker);

  std::vector<std::unique_ptr<Worker>> workers_;  ///< the last one is the agents'
  std::size_t next_ = 0;
};

}  // namespace ddp::remote
