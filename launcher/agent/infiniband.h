#pragma once

#include <string>
#include <vector>

#include "launcher/job/env_filter.h"

namespace ddp::launcher {

/// These functions see the machine's InfiniBand as NCCL does. They read small files. `root` is a prefix of
/// every path, "" for the real one.
///
/// Returns adapters with an active port whose link layer is InfiniBand: "mlx5_0", sorted. Adapters on
/// Ethernet (RoCE) are omitted, because many of them are plain network cards.
std::vector<std::string> active_infiniband(const std::string& root);
/// Returns them together with active adapters on Ethernet.
std::vector<std::string> active_rdma(const std::string& root);

/// Returns why NCCL, with a worker's `env`, would use TCP sockets instead of `adapters` (active_infiniband),
/// as text. Empty: no obstacle is known. `asked` are the variables that the user set explicitly for this job;
/// these are intended.
std::string infiniband_trouble(const std::vector<std::string>& adapters, const EnvVars& env,
                               const EnvVars& asked, const std::string& root);

}  // namespace ddp::launcher
