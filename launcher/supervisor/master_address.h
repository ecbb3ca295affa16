#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddp::launcher {

/// Chooses the address of node 0 that all ranks get as MASTER_ADDR (sans-IO): the most preferred candidate
/// that every other node can reach. Each node reports the first address that it reaches, which rules out the
/// earlier ones for all nodes. Nodes that have not tried the remaining candidate are then asked for it.
class MasterAddress {
 public:
  /// Asks one node which of these addresses reaches the store. A node has at most one open probe.
  struct AddressProbe {
    std::size_t node;
    std::vector<std::string> addresses;  ///< in order of preference
  };

  /// Starts over with `candidates` (never empty, no two equal) for `nodes` nodes.
  std::vector<AddressProbe> begin(std::vector<std::string> candidates, std::size_t nodes);
  /// `node` reached the store at `address`, one of the probed addresses, and at none before it. Returns the
  /// nodes that have to be asked again.
  std::vector<AddressProbe> reached(std::size_t node, const std::string& address);
  /// `node` reached the store at none of the probed addresses.
  std::vector<AddressProbe> failed(std::size_t node);

  /// Every node reaches `chosen`.
  bool settled() const;
  /// No candidate is reached by all nodes, and no node is asked any more.
  bool is_exhausted() const { return chosen_ == candidates_.size(); }
  /// No answer of `node` is pending.
  bool reaches(std::size_t node) const { return !nodes_[node].asked; }
  /// Returns the best candidate that may still work, or the last one when all are ruled out.
  const std::string& chosen() const;
  /// Returns a node that does not reach `candidate`; 0: none is known. `candidate` must be one of those given
  /// to begin, here and below.
  std::size_t cut_off(const std::string& candidate) const;
  /// Returns all nodes that do not reach `candidate`, ascending.
  std::vector<std::size_t> all_cut_off(const std::string& candidate) const;

 private:
  enum class ProbeState : std::uint8_t { kNothing, kReached, kNot };
  struct Node {
    bool asked = false;
    std::size_t first = 0;  ///< candidates in its probe: [first, last)
    std::size_t last = 0;
    std::vector<ProbeState> known;
  };

  std::size_t index_of(const std::string& candidate) const;
  bool learn(std::size_t node, std::size_t first_reached);
  std::vector<AddressProbe> ask_again();

  std::vector<std::string> candidates_;
  std::vector<Node> nodes_;    ///< the first one is node 0, which is never asked
  std::vector<bool> cut_off_;  ///< by candidate: true if some node does not reach it
  std::size_t asked_ = 0;      ///< number of nodes whose answer is pending
  std::size_t chosen_ = 0;
};

}  // namespace ddp::launcher
