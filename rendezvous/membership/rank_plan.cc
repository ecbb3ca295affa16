#include "rendezvous/membership/rank_plan.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/result.h"
#include "base/text.h"

namespace ddp::rendezvous {

namespace {

struct Share {
  int processes = 0;  // 0: this node cannot do what was requested
  std::string reason;
};

// Limits a count found on the node to its slots. The slots are the user's limit, so a larger count is no
// error.
Share cut_to_slots(int count, std::string what, const NodeSlots& node, bool oversubscribe) {
  if (!node.slots || oversubscribe || count <= *node.slots) return {count, std::move(what)};
  return {*node.slots, "slots=" + std::to_string(*node.slots) + " of " + what};
}

Share by_gpus(const NodeSlots& node, bool oversubscribe) {
  const int gpus = node.devices ? *node.devices : node.gpus;
  if (gpus < 1) return {};
  return cut_to_slots(gpus, counted(gpus, node.devices ? "chosen device" : "GPU"), node, oversubscribe);
}

Share by_cpus(const NodeSlots& node, bool oversubscribe) {
  const int cpus = std::max(node.cpus, 1);
  return cut_to_slots(cpus, counted(cpus, "CPU"), node, oversubscribe);
}

Share unset_share(const NodeSlots& node) {
  // From what the user named most exactly to what the node merely has: devices, slots, GPUs, one worker.
  if (node.devices && *node.devices > 0) return by_gpus(node, false);
  if (node.slots) return {*node.slots, "slots=" + std::to_string(*node.slots)};
  if (node.gpus > 0) return by_gpus(node, false);
  return {1, "one worker: no slots, no GPU, no --nproc-per-node"};
}

Share share_of(const NodeSlots& node, const ProcsWanted& wanted) {
  switch (wanted.rule) {
    case ProcsRule::kUnset: return unset_share(node);
    case ProcsRule::kNumber: return {wanted.number, "--nproc-per-node " + std::to_string(wanted.number)};
    case ProcsRule::kAuto: {
      const Share gpus = by_gpus(node, wanted.oversubscribe);
      return gpus.processes > 0 ? gpus : by_cpus(node, wanted.oversubscribe);
    }
    case ProcsRule::kGpu: return by_gpus(node, wanted.oversubscribe);
    case ProcsRule::kCpu: return by_cpus(node, wanted.oversubscribe);
  }
  return {};
}

}  // namespace

Result<> check_slots(const std::vector<NodeSlots>& nodes, const ProcsWanted& wanted) {
  std::vector<std::string> errors;
  if (wanted.rule == ProcsRule::kNumber && wanted.number < 1) {
    errors.push_back("--nproc-per-node " + std::to_string(wanted.number) + ": give at least 1");
  }
  for (const NodeSlots& node : nodes) {
    if (!node.slots) continue;
    if (*node.slots < 1) {
      errors.push_back(node.name + ": slots=" + std::to_string(*node.slots) +
                       " allows no worker on this host; remove the host or give it at least 1");
    } else if (wanted.rule == ProcsRule::kNumber && wanted.number > *node.slots && !wanted.oversubscribe) {
      errors.push_back(node.name + ": --nproc-per-node " + std::to_string(wanted.number) +
                       " is more than its slots=" + std::to_string(*node.slots) +
                       "; ask for fewer, raise slots in the hostfile, or add --oversubscribe");
    }
  }
  if (!errors.empty()) return Error{ErrorCode::kUsage, join(errors, "\n")};
  return {};
}

Result<RankPlan> plan_ranks(const std::vector<NodeSlots>& nodes, const ProcsWanted& wanted) {
  if (nodes.empty())
    return Error{ErrorCode::kInternal, "internal error: a rank plan without nodes (please report)"};
  DDP_TRY(check_slots(nodes, wanted));

  RankPlan plan;
  std::vector<std::string> without_gpu;
  std::int64_t world = 0;
  for (const NodeSlots& node : nodes) {
    Share share = share_of(node, wanted);
    if (share.processes < 1) without_gpu.push_back(node.name);
    const auto index = static_cast<HostNumber>(plan.assignments.size());
    // Clamped, since the sum is checked only at the end, together with all other mistakes.
    const auto first = static_cast<int>(std::min<std::int64_t>(world, kMaxWorldSize));
    plan.assignments.push_back({index, static_cast<int>(index), first, share.processes});
    plan.reasons.push_back(std::move(share.reason));
    world += share.processes;
  }
  if (!without_gpu.empty()) {
    return Error{ErrorCode::kRefused,
                 "--nproc-per-node gpu: no GPU visible on " + join(without_gpu, ", ") +
                     "; check nvidia-smi and CUDA_VISIBLE_DEVICES there, or give a number"};
  }
  if (world > kMaxWorldSize) {
    return Error{ErrorCode::kUsage, "the plan has " + std::to_string(world) + " ranks; at most " +
                                        std::to_string(kMaxWorldSize) + " are possible"};
  }
  plan.world_size = static_cast<int>(world);
  return plan;
}

void SlotTable::fill(const std::vector<Candidate>& candidates) {
  const bool first_time = slots_.empty();
  std::unordered_map<HostNumber, std::size_t> waiting;  // host → index of the candidate, for hosts without a
                                                        // slot
  for (std::size_t i = 0; i < candidates.size(); ++i)
    waiting.emplace(candidates[i].host, i);
  DDP_REQUIRE(waiting.size() == candidates.size(), waiting.size(), candidates.size());  // no host comes twice
  const auto assign = [&](TableSlot& slot, HostNumber host) {
    slot.owner = host;
    slot.taken = true;
    ++filled_;
    waiting.erase(host);
  };
  const auto owner_comes = [&](const TableSlot& slot) {
    const auto found = waiting.find(slot.owner);
    return found != waiting.end() && candidates[found->second].slots >= slot.size;
  };

  // Current holders before returning owners: a host may have left one slot and hold another.
  filled_ = 0;
  for (const bool held : {true, false}) {
    for (TableSlot& slot : slots_) {
      if (slot.taken != held) continue;
      if (held) slot.taken = false;
      if (filled_ < max_nodes_ && owner_comes(slot)) assign(slot, slot.owner);
    }
  }
  for (TableSlot& slot : slots_) {
    if (slot.taken || filled_ >= max_nodes_ || waiting.empty()) continue;
    // The first spare that is large enough, in the order of the hosts.
    const auto fits = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return c.slots >= slot.size && waiting.contains(c.host);
    });
    if (fits != candidates.end()) assign(slot, fits->host);
  }
  // With a fixed number of nodes the world keeps the shape of the first attempt (docs/developers/states.md,
  // "Slots").
  if (fixed_ && !first_time) return;
  for (const Candidate& candidate : candidates) {
    if (filled_ >= max_nodes_ || waiting.empty()) break;
    if (!waiting.contains(candidate.host)) continue;
    slots_.push_back({candidate.host, candidate.slots, false});
    assign(slots_.back(), candidate.host);
  }
}

World SlotTable::world() const {
  World world;
  world.assignments.reserve(static_cast<std::size_t>(filled_));
  for (const TableSlot& slot : slots_) {
    if (!slot.taken) continue;
    world.assignments.push_back(
        {slot.owner, static_cast<int>(world.assignments.size()), world.world_size, slot.size});
    world.world_size += slot.size;
  }
  return world;
}

}  // namespace ddp::rendezvous
