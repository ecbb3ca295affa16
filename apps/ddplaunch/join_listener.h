#pragma once

#include <memory>
#include <optional>

#include "apps/ddplaunch/start_up.h"
#include "base/asio.h"
#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "remote/shells/remote_shell.h"
#include "rendezvous/link/tcp_listener.h"
#include "rendezvous/secure/link_token.h"

namespace ddp {

/// The control port of per-node mode, and what proves who may come in.
struct JoinListener {
  rendezvous::TcpListener listener;
  rendezvous::LinkToken token;
};

/// The token of the job: --token-file, else `given`. Without one: with --insecure a public one that protects
/// nothing; where node 0 is on this machine, this user's own (launcher::loopback_token). kUsage, kSystem:
/// there is none, or it is no good; the text says what to do.
Result<rendezvous::LinkToken> find_link_token(const launcher::JobSpec& spec, const GivenToken& given);

/// The port, when this is node 0; nothing when this node joins another one. Without a rank it is node 0 where
/// MASTER_ADDR is this machine and no process of this user was there first. kSystem, kUsage: it cannot be
/// had; the text names who has it.
Result<std::optional<rendezvous::TcpListener>> take_control_port(const launcher::PerNode& node);

/// How the master gets its nodes.
Result<std::unique_ptr<remote::RemoteShell>> make_join_shell(asio::io_context& loop,
                                                             const launcher::JobSpec& spec,
                                                             JoinListener join_listener, UserNotifier notify);

}  // namespace ddp
