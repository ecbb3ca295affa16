#pragma once

#include <cstdint>
#include <vector>

namespace ddp::rendezvous {

/// A host's number for the whole job: its index in the hostfile, the given node rank, or the order of first
/// joining.
using HostNumber = std::uint32_t;

/// One node's part of an attempt: ranks first_rank … first_rank + local_world_size − 1.
struct RankAssignment {
  HostNumber host = 0;
  int node_rank = 0;
  int first_rank = 0;
  int local_world_size = 0;
  bool operator==(const RankAssignment&) const = default;
};

/// The world of one attempt, ordered by node_rank. Equal lists of assignments mean the same world.
struct World {
  std::vector<RankAssignment> assignments;
  int world_size = 0;
  bool operator==(const World&) const = default;
};

/// Assigns hosts to slots across attempts (sans-IO; docs/developers/states.md has the rules). A value: copy
/// it, fill the copy, and keep the copy if its world is good enough.
class SlotTable {
 public:
  struct Candidate {
    HostNumber host = 0;
    int slots = 1;  ///< workers that it can run, ≥ 1
  };

  /// `fixed`: the world keeps the shape of its first attempt; otherwise it may shrink and grow.
  explicit SlotTable(int max_nodes, bool fixed = false) : max_nodes_(max_nodes), fixed_(fixed) {}

  /// Assigns slots to the candidates by these rules, in order. A host keeps the slot that it holds. A
  /// returning host takes its previous slot if that is empty. The first candidate with enough device slots
  /// takes an empty slot with its size. Remaining candidates get new slots at the end. Candidates without a
  /// slot are spares. The order of the candidates is the order of the slots at the first fill, and later the
  /// order of the spares. No host may appear twice.
  void fill(const std::vector<Candidate>& candidates);

  /// Returns the world of the last fill: node_rank counts the filled slots, ranks are prefix sums of their
  /// sizes.
  World world() const;
  int filled() const { return filled_; }

 private:
  struct TableSlot {
    HostNumber owner;  ///< last holder
    int size;
    bool taken;
  };

  int max_nodes_;
  bool fixed_;
  std::vector<TableSlot> slots_;
  int filled_ = 0;
};

}  // namespace ddp::rendezvous
