#include "rendezvous/membership/slot_table.h"

#include <algorithm>
#include <unordered_map>

#include "base/require.h"

namespace ddp::rendezvous {

void SlotTable::fill(const std::vector<Candidate>& candidates) {
  const bool first_time = slots_.empty();
  std::unordered_map<HostNumber, std::size_t> waiting;  // host → index of the candidate, for hosts without a
                                                        // slot
  for (std::size_t i = 0; i < candidates.size(); ++i)
    waiting.emplace(candidates[i].host, i);
  DDP_REQUIRE(waiting.size() == candidates.size(), waiting.size(), candidates.size());  // no host comes twice
  const auto take = [&](TableSlot& slot, HostNumber host) {
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
      if (filled_ < max_nodes_ && owner_comes(slot)) take(slot, slot.owner);
    }
  }
  for (TableSlot& slot : slots_) {
    if (slot.taken || filled_ >= max_nodes_ || waiting.empty()) continue;
    const auto fits = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return c.slots >= slot.size && waiting.contains(c.host);
    });
    if (fits != candidates.end()) take(slot, fits->host);
  }
  if (fixed_ && !first_time) return;
  for (const Candidate& candidate : candidates) {
    if (filled_ >= max_nodes_ || waiting.empty()) break;
    if (!waiting.contains(candidate.host)) continue;
    slots_.push_back({candidate.host, candidate.slots, false});
    take(slots_.back(), candidate.host);
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
