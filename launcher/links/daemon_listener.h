#pragma once

#include <string>

#include "rendezvous/link/link_token.h"
#include "rendezvous/link/tcp_listener.h"

namespace ddp::launcher {

struct DaemonListenerOptions {
  rendezvous::TcpListener listener;
  std::string where;  ///< for the log: "port 29499"
  rendezvous::LinkToken token;
  std::string agent;  ///< the ddplaunchd to start for each master
};

/// `ddplaunchd --listen`: accepts masters that prove the token, and forks a session process for each.
/// Sessions survive the end of this process, so a restart or an upgrade ends no job. Returns the exit code; a
/// session process never returns. SIGTERM, SIGINT and SIGHUP end only the listener. Must be called before any
/// thread starts. Log lines go to stderr.
int run_daemon_listener(DaemonListenerOptions options);

}  // namespace ddp::launcher
