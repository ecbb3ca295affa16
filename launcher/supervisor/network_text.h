#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launcher/supervisor/net_choice.h"

namespace ddp::launcher {

/// What one node says of its InfiniBand.
struct NodeInfiniband {
  std::string name;
  std::uint32_t gpus = 0;
  std::vector<std::string> adapters;  ///< with an active port
  std::string trouble;                ///< why NCCL would not use them; empty: it would
};

/// "network 10.1.0.0/16: MASTER_ADDR=10.1.0.1 (eth0 on a, b; ib1 on c)", for the user. `interfaces`: the
/// nodes by the name of their interface, "" for those where it is not clear.
std::string network_text(const NetRoute& route,
                         const std::map<std::string, std::vector<std::string>>& interfaces);

/// A line for each reason for which NCCL would use TCP sockets although there is InfiniBand. Empty where no
/// node has both a GPU and an adapter.
std::vector<std::string> infiniband_warnings(const std::vector<NodeInfiniband>& nodes);

}  // namespace ddp::launcher
