#include "apps/train/nccl_network.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace ddp::train {

namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<std::string> active_infiniband(const std::string& root) {
  std::vector<std::string> ports;
  std::error_code failed;
  using Folder = std::filesystem::directory_iterator;
  for (Folder device(root, failed), end; !failed && device != end; device.increment(failed)) {
    std::error_code none;
    for (Folder port(device->path() / "ports", none), last; !none && port != last; port.increment(none)) {
      if (first_line(port->path() / "state") != "4: ACTIVE") continue;
      const std::string layer = first_line(port->path() / "link_layer");
      ports.push_back(device->path().filename().string() + " port " + port->path().filename().string() +
                      (layer == "InfiniBand" || layer.empty() ? "" : " (" + layer + ")"));
    }
  }
  std::ranges::sort(ports);
  return ports;
}

}  // namespace ddp::train
