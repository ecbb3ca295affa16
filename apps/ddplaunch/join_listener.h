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

/// The control port of per-node mode, and the token that nodes prove.
struct JoinListener {
  rendezvous::TcpListener listener;
  rendezvous::LinkToken token;
};

/// Returns the job's token: --token-file, else `given`. If there is neither, --insecure gives a public token,
/// which protects nothing. If node 0 is on this machine, it is this user's own token
/// (launcher::loopback_token). kUsage, kSystem: there is no token, or it is invalid; the text says what to
/// do.
Result<rendezvous::LinkToken> find_link_token(const launcher::JobSpec& spec, const GivenToken& given);

/// Returns the listener if this is node 0, and nullopt if this node joins another one. If no rank is given,
/// this is node 0 if MASTER_ADDR is this machine and no process of this user has the port. kSystem, kUsage:
/// the port cannot be taken; the text names its holder.
Result<std::optional<rendezvous::TcpListener>> take_control_port(const launcher::PerNode& node);

/// Makes the shell through which the master gets its nodes.
Result<std::unique_ptr<remote::RemoteShell>> make_join_shell(asio::io_context& loop,
                                                             const launcher::JobSpec& spec,
                                                             JoinListener join_listener, UserNotifier notify);

}  // namespace ddp
