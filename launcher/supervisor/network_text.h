#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launcher/supervisor/net_choice.h"

namespace ddp::launcher {

/// InfiniBand facts that one node reports.
struct NodeInfiniband {
  std::string name;
  std::uint32_t gpus = 0;
  std::vector<std::string> adapters;  ///< with an active port
  std::string trouble;                ///< why NCCL would not use them; empty: NCCL would
};

/// Returns a text for the user: "network 10.1.0.0/16: MASTER_ADDR=10.1.0.1 (eth0 on a, b; ib1 on c)".
/// `interfaces` maps interface names to nodes; "" holds the nodes whose interface is unknown.
std::string network_text(const NetRoute& route,
                         const std::map<std::string, std::vector<std::string>>& interfaces);

/// Returns one line per reason for which NCCL would use TCP sockets although InfiniBand exists. Returns no
/// lines when no node has both a GPU and an adapter.
std::vector<std::string> infiniband_warnings(const std::vector<NodeInfiniband>& nodes);

}  // namespace ddp::launcher
