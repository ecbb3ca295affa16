#include "apps/train/collectives/nccl/nccl_network.h"

#include <algorithm>
#include <filesystem>

#include "base/files.h"

namespace ddp::train {

namespace {}  // namespace

std::vector<std::string> active_infiniband(const std::string& root) {
  std::vector<std::string> ports;
  for (const auto& device : list_directory(root)) {
    for (const auto& port : list_directory(device / "ports")) {
      if (first_line(port / "state") != "4: ACTIVE") continue;
      const std::string layer = first_line(port / "link_layer");
      ports.push_back(device.filename().string() + " port " + port.filename().string() +
                      (layer == "InfiniBand" || layer.empty() ? "" : " (" + layer + ")"));
    }
  }
  std::ranges::sort(ports);
  return ports;
}

}  // namespace ddp::train
