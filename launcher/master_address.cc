#include "launcher/master_address.h"

#include <algorithm>

namespace ddp::launcher {

std::vector<MasterAddress::Probe> MasterAddress::begin(std::vector<std::string> candidates, std::size_t nodes,
                                                       bool probing) {
  candidates_ = std::move(candidates);
  chosen_ = candidates_.front();
  nodes_.assign(nodes, Node{});
  std::vector<Probe> probes;
  for (std::size_t i = 1; i < nodes && probing; ++i) {
    nodes_[i].pending = true;
    probes.push_back({i, candidates_});
  }
  return probes;
}

std::vector<MasterAddress::Probe> MasterAddress::reached(std::size_t node, const std::string& address) {
  const auto place = [this](const std::string& candidate) {
    return std::find(candidates_.begin(), candidates_.end(), candidate) - candidates_.begin();
  };
  nodes_[node].pending = false;
  nodes_[node].address = address;
  std::vector<Probe> probes;
  if (place(address) <= place(chosen_)) return probes;
  chosen_ = address;
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    if (nodes_[i].pending || nodes_[i].address == chosen_) continue;
    nodes_[i].pending = true;
    probes.push_back({i, {chosen_}});
  }
  return probes;
}

bool MasterAddress::settled() const {
  return std::none_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.pending; });
}

}  // namespace ddp::launcher
