#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/shells/remote_shell.h"
#include "remote/start/agent_bundle.h"
#include "rendezvous/secure/link_token.h"

namespace ddp {

/// What DDPLAUNCH_TOKEN held before it was erased; empty when it was not set. An error counts where the token
/// is needed.
using GivenToken = Result<rendezvous::LinkToken>;

/// Whatever the parent left us: children are waited for, signals arrive, and a full disk or pipe is an error
/// and no death.
void take_signals();

/// Raises the limit of open files for the nodes of this job. Error kSystem: the hard limit is too low for
/// them. To be called before any thread, and before anything starts.
Result<> make_room_for_nodes(const launcher::JobSpec& spec);

/// What takes the lines that a shell has for the user. Called on the loop's thread, so it must not wait for
/// whoever reads them; may be empty.
using UserNotifier = std::function<void(const std::string&)>;

/// How the hosts of the job are reached. With --launcher daemon kUsage: there is no good token.
Result<std::unique_ptr<remote::RemoteShell>> make_remote_shell(asio::io_context& loop,
                                                               const launcher::JobSpec& spec,
                                                               const GivenToken& given, UserNotifier notify);

/// Which agent the nodes are to run.
struct AgentChoice {
  std::string path;                             ///< on the nodes
  remote::AgentHello expected;                  ///< what its hello must say
  std::shared_ptr<remote::AgentBundle> bundle;  ///< where nodes without it get one from; unset: they get none
};
Result<AgentChoice> choose_agent(const launcher::JobSpec& spec);

}  // namespace ddp
