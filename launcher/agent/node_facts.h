#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/job/worker_env.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The data about its node that an agent needs.
struct NodeFacts {
  rendezvous::Hello hello;  ///< without what only the agent knows: keeper, clock and workers
  std::uint32_t cores = 1;  ///< physical cores among hello.cpus; >= 1, <= hello.cpus; for OMP_NUM_THREADS
};

/// Reads the facts of this machine: files of /proc and /sys, the affinity mask, getifaddrs. Resolves no name.
/// Blocks for a few milliseconds at most. Unreadable facts count as absent (no GPU, no quota). Error kSystem:
/// the machine has no boot id or no list of interfaces.
Result<NodeFacts> gather_node_facts();

/// The parts, so that tests can use other files. `proc`: "/proc"; `root` is a prefix of every other path, ""
/// for the real one.
namespace facts {

/// Returns the number of whole CPUs that the cgroup's quota allows, rounded up; 0: no quota. Uses cpu.max of
/// v2 or cpu.cfs_quota_us of v1, the tightest of the own group and its ancestors.
std::uint32_t cpu_quota(const std::string& proc, const std::string& root);
/// Numbers of the CPUs in this process's affinity mask.
std::vector<int> affinity_cpus();
/// Physical cores among `cpus`, by thread_siblings_list; 0: unknown.
std::uint32_t physical_cores(const std::vector<int>& cpus, const std::string& root);

}  // namespace facts

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
