#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddp::rendezvous {

/// The form in which --nproc-per-node was given. kAuto: the GPUs, or the CPUs on a node without GPUs (as
/// torchrun). kUnset: see plan_ranks.
enum class ProcsRule { kUnset, kNumber, kAuto, kGpu, kCpu };

/// --nproc-per-node and --oversubscribe.
struct ProcsWanted {
  ProcsRule rule = ProcsRule::kUnset;
  int number = 0;  ///< kNumber only; ≥ 1
  bool oversubscribe = false;
};

/// Input for the number of workers of one node.
struct NodeSlots {
  std::string name;            ///< for messages
  std::optional<int> slots;    ///< from the hostfile; unset: no limit
  std::optional<int> devices;  ///< number of devices chosen by gpus= or --include; unset: all
  int gpus = 0;                ///< from the node's hello
  int cpus = 1;                ///< from the node's hello
};

/// A host's number for the whole job: its index in the hostfile, the given node rank, or the order of first
/// joining.
using HostNumber = std::uint32_t;

/// One node's part of the world: ranks first_rank … first_rank + local_world_size − 1.
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

/// A world that has the order of its input (hostfile order is rank order), and why each node has its workers,
/// as text: "slots=8", "4 GPUs", "one worker: no slots, no GPU, no --nproc-per-node".
struct RankPlan : World {
  std::vector<std::string> reasons;
};

/// Checks for errors that are visible before any node has answered: an explicit number above a host's slots,
/// slots < 1, a number < 1. Returns all of them in one kUsage error, one line each.
Result<> check_slots(const std::vector<NodeSlots>& nodes, const ProcsWanted& wanted);

/// Assigns ranks by prefix sums over the workers of each node:
///   kNumber: that many; more than `slots` is an error unless oversubscribe;
///   kAuto, kGpu, kCpu: what the node has (chosen devices count as its GPUs), limited to its slots unless
///   oversubscribe;
///   kUnset: chosen devices, limited to slots; else slots; else GPUs; else 1.
/// Errors: as check_slots (kUsage); kGpu on nodes without a GPU (kRefused, naming all of them); more than
/// kMaxWorldSize ranks (kUsage). `nodes` must not be empty.
Result<RankPlan> plan_ranks(const std::vector<NodeSlots>& nodes, const ProcsWanted& wanted);

inline constexpr int kMaxWorldSize = 1'000'000;

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
