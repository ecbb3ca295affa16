#include "launcher/supervisor/network_text.h"

#include <cstddef>

#include "base/format_text.h"

namespace ddp::launcher {

constexpr std::size_t kMostNames = 4;

std::string network_text(const NetRoute& route,
                         const std::map<std::string, std::vector<std::string>>& interfaces) {
  std::string text = route.network.empty() ? "" : "network " + route.network + ": ";
  text += "MASTER_ADDR=" + route.master_addr;
  std::string list;
  if (interfaces.size() == 1) {
    list = interfaces.begin()->first;
  } else {
    for (const auto& [interface, nodes] : interfaces)
      list += (list.empty() ? "" : "; ") + (interface.empty() ? "unknown interface" : interface) + " on " +
              join_some(nodes, kMostNames);
  }
  return list.empty() ? text : text + " (" + list + ")";
}

std::vector<std::string> infiniband_warnings(const std::vector<NodeInfiniband>& nodes) {
  std::map<std::string, std::vector<std::string>> troubled;
  std::vector<std::string> without;
  bool any = false;
  for (const NodeInfiniband& node : nodes) {
    if (node.gpus == 0) continue;
    any = any || !node.adapters.empty();
    if (node.adapters.empty())
      without.push_back(node.name);
    else if (!node.trouble.empty())
      troubled[node.trouble].push_back(node.name);
  }
  std::vector<std::string> warnings;
  for (const auto& [trouble, names] : troubled)
    warnings.push_back("NCCL will use TCP sockets although InfiniBand exists: " + trouble + " (" +
                       join_some(names, kMostNames) + ")");
  if (any && !without.empty())
    warnings.push_back("no active InfiniBand port on " + join_some(without, kMostNames) +
                       ", but on the other nodes; NCCL needs it on all nodes: fix it, or set "
                       "NCCL_IB_DISABLE=1 on all nodes");
  return warnings;
}

}  // namespace ddp::launcher
