#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// What an agent's hello says of its node.
struct NodeFacts {
  std::string hostname;
  std::string machine_id;           ///< boot id + network namespace: equal = loopback reaches the other one
  std::string system;               ///< "Linux 6.1.0-18-amd64 x86_64"
  std::uint32_t pid = 0;            ///< of this process
  std::uint64_t pid_namespace = 0;  ///< inode of it; 0: not known
  std::uint32_t cpus = 1;           ///< usable logical CPUs: affinity, cut by the cgroup's quota; >= 1
  std::uint32_t cores = 1;  ///< physical cores among them; >= 1, <= cpus. OMP_NUM_THREADS is made of it
  std::uint32_t gpus = 0;   ///< length of CUDA_VISIBLE_DEVICES when set, else what the driver shows
  /// One entry per address (an interface with two addresses stands twice), link-local ones included.
  std::vector<rendezvous::Interface> interfaces;
};

/// Looks at the machine this process runs on: files of /proc and /sys, the affinity mask, getifaddrs; no name
/// is resolved. Blocks for a few milliseconds at most. Whatever cannot be read counts as absent (no GPU, no
/// quota); only a machine without a boot id or without a list of interfaces is an Error (kSystem).
Result<NodeFacts> gather_node_facts();

/// The parts, so that tests can show them another machine. `proc`, `dev`: "/proc", "/dev"; `root` goes before
/// every other path, "" for the real one.
namespace facts {

/// How many whole CPUs the cgroup's quota allows (cpu.max of v2, cpu.cfs_quota_us of v1, the tightest of the
/// own group and its ancestors), rounded up; 0: no quota.
std::uint32_t cpu_quota(const std::string& proc, const std::string& root);
/// Numbers of the CPUs in this process's affinity mask.
std::vector<int> affinity_cpus();
/// Physical cores among `cpus`, by thread_siblings_list; 0: not known.
std::uint32_t physical_cores(const std::vector<int>& cpus, const std::string& root);
/// `visible` is CUDA_VISIBLE_DEVICES, nullptr when unset; its length counts then ("" and "-1": none).
std::uint32_t gpu_count(const char* visible, const std::string& proc, const std::string& dev);

}  // namespace facts
}  // namespace ddp::launcher
