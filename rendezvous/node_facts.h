#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::rendezvous {

/// One address of one network interface. An interface with two addresses is two entries with the same name;
/// one without an address is not listed.
struct NetInterface {
  std::string name;          ///< as the kernel calls it: eth0
  std::string address;       ///< numeric IPv4 or IPv6, without a scope
  std::uint32_t prefix = 0;  ///< prefix length in bits
  bool up = false;           ///< up and with a carrier
  bool loopback = false;

  bool operator==(const NetInterface&) const = default;
};

/// What an agent's hello says of its node. Flat on purpose: it travels in the hello message. Gathered by
/// launcher/node_facts.h on the node, read by the master.
struct NodeFacts {
  std::string hostname;
  std::string machine_id;   ///< boot id + network namespace: equal = loopback reaches the other one
  std::string system;       ///< "Linux 6.1.0-18-amd64 x86_64"
  std::uint32_t pid = 0;    ///< of the agent
  std::uint32_t cpus = 1;   ///< usable logical CPUs: affinity, cut by the cgroup's quota; ≥ 1
  std::uint32_t cores = 1;  ///< physical cores among them; ≥ 1, ≤ cpus. What OMP_NUM_THREADS is made of
  std::uint32_t gpus =
      0;  ///< visible GPUs: length of CUDA_VISIBLE_DEVICES when set, else what the driver shows
  std::vector<NetInterface> interfaces;

  bool operator==(const NodeFacts&) const = default;
};

}  // namespace ddp::rendezvous
