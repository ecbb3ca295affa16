#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddp::launcher {

/// Per-node mode: one ddplaunch is started on each node, by a person or a scheduler, and the nodes meet at
/// node 0's. What this one was told (docs/per_node.md).
struct PerNode {
  static constexpr std::uint16_t kPort = 29500;  ///< as torchrun

  std::optional<int> rank;  ///< of this node; unset: it is found out
  std::string master_addr;  ///< where node 0 is, as the other nodes know it: a name or an address
  std::uint16_t port = kPort;
  int nodes = 0;          ///< all, spares included; at least 2
  std::string link_job;   ///< the job's name on the links: the same on all nodes
  bool insecure = false;  ///< no token is needed
};

}  // namespace ddp::launcher
