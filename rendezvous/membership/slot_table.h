#pragma once

#include <cstdint>
#include <vector>

namespace ddp::rendezvous {

/// A host's number for the whole job: its place in the hostfile, the given node rank, or the order of first
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

/// The world of one attempt, in order of node_rank. The same list of places is the same world.
struct World {
  std::vector<RankAssignment> assignments;
  int world_size = 0;
  bool operator==(const World&) const = default;
};

/// Who sits where, from attempt to attempt (sans-IO; docs/states.md has the rules). A value: copy it, fill
/// the copy, and keep that if the world it gives is good enough.
class SlotTable {
 public:
  struct Candidate {
    HostNumber host = 0;
    int slots = 1;  ///< workers that it can run, ≥ 1
  };

  /// `fixed`: the world keeps the shape of its first attempt; otherwise it may shrink and grow.
  explicit SlotTable(int max_nodes, bool fixed = false) : max_nodes_(max_nodes), fixed_(fixed) {}

  /// Gives slots to those who can take part, in this order of rules: a holder keeps its slot; a host that
  /// returns takes its own if that is empty; the first candidate with enough device slots takes an empty
  /// slot, and its size; what is left over gets new slots at the end. Candidates that find no slot are
  /// spares. Order of the candidates: the first fill makes the slots in it, later it is the order of the
  /// spares. No host twice.
  void fill(const std::vector<Candidate>& candidates);

  /// Of the last fill: node_rank counts the filled slots, ranks are prefix sums of their sizes.
  World world() const;
  int filled() const { return filled_; }
  /// Seats that were ever made; those that are empty are closed until somebody takes them.
  int count() const { return static_cast<int>(slots_.size()); }

 private:
  struct TableSlot {
    HostNumber owner;  ///< who held it last
    int size;
    bool taken;
  };

  int max_nodes_;
  bool fixed_;
  std::vector<TableSlot> slots_;
  int filled_ = 0;
};

}  // namespace ddp::rendezvous
