#pragma once

#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "base/asio.h"
#include "remote/ssh/ssh_session.h"

namespace ddp::remote {

/// The I/O threads of the SSH sessions, each with its own loop, and one more thread for logins through an
/// ssh-agent. Threads start when first needed. Use it on the loop thread only, except for the sessions' own
/// work.
class SshThreads {
 public:
  /// Uses at most `count` I/O threads.
  explicit SshThreads(unsigned count);
  /// Closes every session, then ends the threads. No event of a session follows.
  ~SshThreads();
  SshThreads(const SshThreads&) = delete;
  SshThreads& operator=(const SshThreads&) = delete;

  /// Starts a session on one of the threads. The session lives as long as it has pending operations.
  std::weak_ptr<SshSession> start(SshTarget target, SshSession::SshSessionEvents events);
  /// Ends the session, and drops the reference on its thread. Null is allowed.
  void close(std::shared_ptr<SshSession> session, SshSession::HangUp hang_up = SshSession::HangUp::kNo);

 private:
  struct Worker;
  void run(Worker& worker);

  std::vector<std::unique_ptr<Worker>> workers_;  ///< the last one serves the ssh-agents
  std::size_t next_ = 0;
};

}  // namespace ddp::remote
