#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/job_spec.h"
#include "remote/agent_stock.h"
#include "remote/bootstrap.h"
#include "remote/remote_shell.h"

namespace ddp {

/// Whatever the parent left us: children are waited for, signals arrive, and a full disk or pipe is an error
/// and no death.
void take_signals();

/// What takes the lines that a shell has for the user. Called on the loop's thread, so it must not wait for
/// whoever reads them; may be empty.
using TellUser = std::function<void(const std::string&)>;

/// How the hosts of the job are reached. With --launcher daemon kUsage: there is no good token. To be called
/// before any thread.
Result<std::unique_ptr<remote::RemoteShell>> make_remote_shell(asio::io_context& loop,
                                                               const launcher::JobSpec& spec, TellUser tell);

/// Which agent the nodes are to run.
struct AgentChoice {
  std::string path;                         ///< on the nodes
  remote::AgentHello expected;              ///< what its hello must say
  std::optional<remote::AgentStock> stock;  ///< where nodes without it get one from; unset: they get none
};
Result<AgentChoice> choose_agent(const launcher::JobSpec& spec);

}  // namespace ddp
