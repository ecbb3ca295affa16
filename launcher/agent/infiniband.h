#pragma once

#include <string>
#include <vector>

#include "launcher/job/env_filter.h"

namespace ddp::launcher {

/// InfiniBand of the machine as NCCL would find it. Reads small files; `root` goes before every path, "" for
/// the real one.
///
/// Adapters with an active port whose link layer is InfiniBand: "mlx5_0", sorted. Those on Ethernet (RoCE)
/// are left out: many of them are plain network cards.
std::vector<std::string> active_infiniband(const std::string& root);

/// Why NCCL, with `env` as a worker has it, would not use `adapters` (active_infiniband) but TCP sockets; in
/// words. Empty: nothing is known to be in its way. `asked` are the variables that the user set for this job
/// by name: what they say is no mistake.
std::string infiniband_trouble(const std::vector<std::string>& adapters, const EnvVars& env,
                               const EnvVars& asked, const std::string& root);

}  // namespace ddp::launcher
