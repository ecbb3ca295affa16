#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace ddp::launcher {

/// Which address of node 0 all ranks get as MASTER_ADDR (sans-IO): the most preferred candidate that every
/// other node can reach. Nodes probe all candidates; who had to take a worse one drags the others along, and
/// who answered with a better one is asked again.
class MasterAddress {
 public:
  /// A question to one node: which of these addresses reaches the store?
  struct Probe {
    std::size_t node;
    std::vector<std::string> addresses;  ///< in order of preference
  };

  /// Begins again, with `candidates` (never empty) for `nodes` nodes. Not `probing`: the first is taken
  /// unasked.
  std::vector<Probe> begin(std::vector<std::string> candidates, std::size_t nodes, bool probing);
  /// `node` reached the store at `address`, one of those it was asked for. Returns who has to be asked again.
  std::vector<Probe> reached(std::size_t node, const std::string& address);

  bool settled() const;  ///< every node reaches `chosen`
  bool reaches(std::size_t node) const { return !nodes_[node].pending; }
  const std::string& chosen() const { return chosen_; }

 private:
  struct Node {
    bool pending = false;
    std::string address;
  };
  std::vector<std::string> candidates_;
  std::vector<Node> nodes_;
  std::string chosen_;
};

}  // namespace ddp::launcher
