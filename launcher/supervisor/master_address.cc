#include "launcher/supervisor/master_address.h"

#include <algorithm>

namespace ddp::launcher {

std::vector<MasterAddress::AddressProbe> MasterAddress::begin(std::vector<std::string> candidates,
                                                              std::size_t nodes) {
  candidates_ = std::move(candidates);
  chosen_ = 0;
  asked_ = nodes - 1;
  cut_off_.assign(candidates_.size(), false);
  nodes_.assign(nodes, Node{});
  std::vector<AddressProbe> probes;
  for (std::size_t i = 0; i < nodes; ++i) {
    Node& node = nodes_[i];
    const bool asked = i != 0;
    node.known.assign(candidates_.size(), asked ? ProbeState::kNothing : ProbeState::kReached);
    if (!asked) continue;
    node.asked = true;
    node.last = candidates_.size();
    probes.push_back({i, candidates_});
  }
  return probes;
}

std::vector<MasterAddress::AddressProbe> MasterAddress::reached(std::size_t node,
                                                                const std::string& address) {
  return learn(node, index_of(address)) ? ask_again() : std::vector<AddressProbe>{};
}

std::vector<MasterAddress::AddressProbe> MasterAddress::failed(std::size_t node) {
  return learn(node, candidates_.size()) ? ask_again() : std::vector<AddressProbe>{};
}

/// Returns true when a node may have to be asked again.
bool MasterAddress::learn(std::size_t index, std::size_t first_reached) {
  Node& node = nodes_[index];
  if (!node.asked) return false;
  node.asked = false;
  --asked_;
  for (std::size_t i = node.first; i < std::min(node.last, first_reached); ++i) {
    node.known[i] = ProbeState::kNot;
    cut_off_[i] = true;
  }
  if (first_reached < node.last) node.known[first_reached] = ProbeState::kReached;
  const std::size_t before = chosen_;
  while (chosen_ < candidates_.size() && cut_off_[chosen_])
    ++chosen_;
  return !is_exhausted() && (chosen_ != before || node.known[chosen_] == ProbeState::kNothing);
}

/// Asks for the chosen candidate only, since the others matter only if it fails.
std::vector<MasterAddress::AddressProbe> MasterAddress::ask_again() {
  std::vector<AddressProbe> probes;
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (node.asked || node.known[chosen_] != ProbeState::kNothing) continue;
    node.asked = true;
    ++asked_;
    node.first = chosen_;
    node.last = chosen_ + 1;
    probes.push_back({i, {candidates_[chosen_]}});
  }
  return probes;
}

bool MasterAddress::settled() const {
  // A node whose answer is known reaches the chosen candidate; otherwise it would be asked again.
  return !is_exhausted() && asked_ == 0;
}

const std::string& MasterAddress::chosen() const {
  return candidates_[std::min(chosen_, candidates_.size() - 1)];
}

std::size_t MasterAddress::cut_off(const std::string& candidate) const {
  const std::vector<std::size_t> nodes = all_cut_off(candidate);
  return nodes.empty() ? 0 : nodes.front();
}

std::vector<std::size_t> MasterAddress::all_cut_off(const std::string& candidate) const {
  const std::size_t index = index_of(candidate);
  std::vector<std::size_t> nodes;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].known[index] == ProbeState::kNot) nodes.push_back(i);
  }
  return nodes;
}

std::size_t MasterAddress::index_of(const std::string& candidate) const {
  return static_cast<std::size_t>(std::find(candidates_.begin(), candidates_.end(), candidate) -
                                  candidates_.begin());
}

}  // namespace ddp::launcher
