#pragma once

#include <string>
#include <vector>

namespace ddp::train {

/// Returns this node's RDMA ports that are up: "mlx5_0 port 1" (InfiniBand) or "mlx5_1 port 1 (Ethernet)".
/// `root` is /sys/class/infiniband outside tests; without that directory, there are none.
std::vector<std::string> active_infiniband(const std::string& root = "/sys/class/infiniband");

}  // namespace ddp::train
