#pragma once

#include <string>

#include "rendezvous/link/tcp_listener.h"
#include "rendezvous/secure/link_token.h"

namespace ddp::launcher {

struct DaemonListenerOptions {
  rendezvous::TcpListener listener;
  std::string where;  ///< for the log: "port 29499"
  rendezvous::LinkToken token;
  std::string agent;  ///< the ddplaunchd that is started for each master
};

/// `ddplaunchd --listen`: takes masters that prove the token, and forks a session process for each,
/// which lives on when this process ends: a restart or an upgrade ends no job. Returns the exit code, of the
/// session in a session's process. SIGTERM, SIGINT and SIGHUP end the listener alone. To be called before any
/// thread. Lines for the log go to stderr.
int run_daemon_listener(DaemonListenerOptions options);

}  // namespace ddp::launcher
