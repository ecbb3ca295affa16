#pragma once

#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/inspection/tool_run.h"
#include "launcher/job/env_filter.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Checks what would prevent a job on this node: files, limits, memory, GPUs. Changes nothing and never
/// fails: problems are part of the result. `env` is the workers' initial environment after --setup, or why
/// --setup failed; `merged`, the environment before it, then serves for the rest. `agent_dir` is this
/// program's directory. A program that exists but is in doubt is reported together with its trouble. Blocks
/// the loop while it reads files, for as long as a dead network disk blocks them. Waits for tools without
/// blocking, at most `request.timeout_ms` or until `stop`.
Awaitable<rendezvous::NodeChecked> check_node(rendezvous::NodeCheck request, Result<EnvVars> env,
                                              EnvVars merged, std::string agent_dir, ToolStop* stop);

namespace facts {

/// Versions of the Python packages that must be equal on all nodes (torch, NCCL), from their directories
/// under `prefix`. `root` is a prefix of every path. Runs no program.
rendezvous::Pairs python_versions(const std::string& prefix, const std::string& root);
/// PRETTY_NAME of an os-release file; empty if it has none.
std::string os_name(const std::string& path);
/// "python 4711 (alice)", as far as `proc` shows it; `passwd` is the account file.
std::string process_text(std::uint32_t pid, const std::string& proc, const std::string& passwd);

}  // namespace facts
}  // namespace ddp::launcher
