#pragma once

#include <memory>
#include <optional>

#include "apps/ddplaunch/start_up.h"
#include "base/asio.h"
#include "base/result.h"
#include "launcher/job_spec.h"
#include "remote/remote_shell.h"
#include "rendezvous/link_token.h"
#include "rendezvous/tcp_listener.h"

namespace ddp {

/// The control port of per-node mode, and what proves who may come in.
struct JoinDoor {
  rendezvous::TcpListener listener;
  rendezvous::LinkToken token;
};

/// The token of the job: --token-file, else DDPLAUNCH_TOKEN, which is erased in any case; without one, where
/// that is allowed (all on this machine, or --insecure), a public one that protects nothing. kUsage: there is
/// none, or it is no good; the text says what to do. Before any thread.
Result<rendezvous::LinkToken> find_link_token(const launcher::JobSpec& spec);

/// The port, when this is node 0; nothing when this node joins another one. Without a rank it is node 0 where
/// MASTER_ADDR is this machine and nobody was there first. kSystem, kUsage: it cannot be had.
Result<std::optional<rendezvous::TcpListener>> take_control_port(const launcher::PerNode& node);

/// How the master gets its nodes.
Result<std::unique_ptr<remote::RemoteShell>> make_join_shell(asio::io_context& loop,
                                                             const launcher::JobSpec& spec, JoinDoor door,
                                                             TellUser tell);

}  // namespace ddp
