#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddp::launcher {

/// Which address of node 0 all ranks get as MASTER_ADDR (sans-IO): the most preferred candidate that every
/// other node can reach. Each node tells the first one that it reaches, so those before it are out for
/// everybody; who has not tried the one that is left is asked for it.
class MasterAddress {
 public:
  /// A question to one node: which of these addresses reaches the store? At most one is open for a node.
  struct AddressProbe {
    std::size_t node;
    std::vector<std::string> addresses;  ///< in order of preference
  };

  /// Begins again, with `candidates` (never empty, no two equal) for `nodes` nodes.
  std::vector<AddressProbe> begin(std::vector<std::string> candidates, std::size_t nodes);
  /// `node` reached the store at `address`, one of those it was asked for, and at none before it. Returns who
  /// has to be asked again.
  std::vector<AddressProbe> reached(std::size_t node, const std::string& address);
  /// `node` reached the store at none of the addresses it was asked for.
  std::vector<AddressProbe> failed(std::size_t node);

  /// Every node reaches `chosen`.
  bool settled() const;
  /// No candidate is reached by all nodes; nobody is asked any more.
  bool is_exhausted() const { return chosen_ == candidates_.size(); }
  /// Nothing is awaited of `node`.
  bool reaches(std::size_t node) const { return !nodes_[node].asked; }
  /// The best candidate that may still do; the last one when it is hopeless.
  const std::string& chosen() const;
  /// A node that does not reach `candidate`; 0: none is known.
  std::size_t cut_off(const std::string& candidate) const;
  /// All of them, ascending.
  std::vector<std::size_t> all_cut_off(const std::string& candidate) const;

 private:
  enum class ProbeState : std::uint8_t { kNothing, kReached, kNot };
  struct Node {
    bool asked = false;
    std::size_t first = 0;  ///< candidates that it was asked for: [first, last)
    std::size_t last = 0;
    std::vector<ProbeState> known;
  };

  std::size_t index_of(const std::string& candidate) const;
  bool learn(std::size_t node, std::size_t first_reached);
  std::vector<AddressProbe> ask_again();

  std::vector<std::string> candidates_;
  std::vector<Node> nodes_;           ///< the first one is node 0, which is never asked
  std::vector<std::size_t> cut_off_;  ///< by candidate: how many do not reach it
  std::size_t asked_ = 0;             ///< nodes whose answer is awaited
  std::size_t chosen_ = 0;
};

}  // namespace ddp::launcher
