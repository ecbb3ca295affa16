#pragma once

#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/inspection/tool_run.h"
#include "launcher/job/env_filter.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Looks for what would be in a job's way on this node: files, limits, memory, GPUs. Changes nothing, and
/// never fails: what cannot be found out is told as such. `env` is what the workers would start from, after
/// --setup, or why that failed; then `merged`, as it was before, serves to ask for the rest. `agent_dir` is
/// where this program lies. A program that is there, but in doubt, is told together with its trouble. Blocks
/// the loop while it looks at files, so as long as a dead network disk holds them; waits for tools without
/// blocking, for `request.timeout_ms` at most, or until `stop`.
Awaitable<rendezvous::NodeChecked> check_node(rendezvous::NodeCheck request, Result<EnvVars> env,
                                              EnvVars merged, std::string agent_dir, ToolStop* stop);

namespace facts {

/// Versions of the Python packages that have to fit on all nodes (torch, NCCL), by their directories under
/// `prefix`; `root` goes before every path. Nothing is run.
rendezvous::Pairs python_versions(const std::string& prefix, const std::string& root);
/// PRETTY_NAME of an os-release file; empty: none.
std::string os_name(const std::string& path);
/// "python 4711 (alice)" as far as `proc` shows it; `passwd` is the file of accounts.
std::string process_text(std::uint32_t pid, const std::string& proc, const std::string& passwd);
/// InfiniBand and RoCE adapters with an active port, below `root` + /sys/class/infiniband.
std::vector<std::string> infiniband_adapters(const std::string& root);

}  // namespace facts
}  // namespace ddp::launcher
