#pragma once

#include <string>
#include <vector>

namespace ddp::train {

/// This node's ports for RDMA that are up: "mlx5_0 port 1" (InfiniBand) or "mlx5_1 port 1 (Ethernet)".
/// `root` is /sys/class/infiniband outside tests; where it is not, there are none.
std::vector<std::string> active_infiniband(const std::string& root = "/sys/class/infiniband");

}  // namespace ddp::train
