#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The data about its node that an agent sends in its hello.
struct NodeFacts {
  std::string hostname;
  std::string machine_id;           ///< boot id + network namespace; equal on nodes that share a loopback
  std::string system;               ///< "Linux 6.1.0-18-amd64 x86_64"
  std::uint32_t pid = 0;            ///< of this process
  std::uint64_t pid_namespace = 0;  ///< inode of it; 0: unknown
  std::uint32_t cpus = 1;           ///< usable logical CPUs: affinity, limited by the cgroup's quota; >= 1
  std::uint32_t cores = 1;          ///< physical cores among them; >= 1, <= cpus; for OMP_NUM_THREADS
  std::uint32_t gpus = 0;  ///< length of CUDA_VISIBLE_DEVICES if set, else the number from the driver
  /// One entry per address, so an interface may occur twice. Link-local addresses are included.
  std::vector<rendezvous::Interface> interfaces;
};

/// Reads the facts of this machine: files of /proc and /sys, the affinity mask, getifaddrs. Resolves no name.
/// Blocks for a few milliseconds at most. Unreadable facts count as absent (no GPU, no quota). Error kSystem:
/// the machine has no boot id or no list of interfaces.
Result<NodeFacts> gather_node_facts();

/// The parts, so that tests can use other files. `proc`, `dev`: "/proc", "/dev"; `root` is a prefix of every
/// other path, "" for the real one.
namespace facts {

/// Returns the number of whole CPUs that the cgroup's quota allows, rounded up; 0: no quota. Uses cpu.max of
/// v2 or cpu.cfs_quota_us of v1, the tightest of the own group and its ancestors.
std::uint32_t cpu_quota(const std::string& proc, const std::string& root);
/// Numbers of the CPUs in this process's affinity mask.
std::vector<int> affinity_cpus();
/// Physical cores among `cpus`, by thread_siblings_list; 0: unknown.
std::uint32_t physical_cores(const std::vector<int>& cpus, const std::string& root);
/// `visible` is CUDA_VISIBLE_DEVICES, or nullptr if unset; if set, its length counts ("" and "-1": none).
std::uint32_t gpu_count(const char* visible, const std::string& proc, const std::string& dev);

}  // namespace facts
}  // namespace ddp::launcher
