#include "apps/train/world/node_data.h"

#include <utility>

namespace ddp::train {

NodeData::NodeData(std::string where, std::size_t limit)
    : where_(std::move(where)), limit_(limit), source_(data_source(where_, limit)) {}

bool NodeData::reads_first(const WorkerEnvironment& environment) {
  return environment.node < 0 || environment.local_world_size < 2 || environment.local_rank == 0;
}

Result<> NodeData::load() {
  if (is_here()) return {};
  auto data = load_data(where_, limit_);
  if (!data) return data.error();
  auto memory = DataMemory::make(*data, source_);
  // Without shared memory, other processes read the files like this one.
  if (memory && *memory) memory_ = std::move(**memory);
  split_ = memory_ ? memory_->data() : std::move(*data);
  return {};
}

Result<> NodeData::share(Communicator& world, const WorkerEnvironment& environment) {
  const auto node = static_cast<std::uint64_t>(environment.node);
  const DataTicket mine = memory_ && environment.node >= 0 ? memory_->ticket(node) : DataTicket{};
  const auto all = world.all_gather(mine.words());
  if (!all) return all.error();
  for (std::size_t at = 0; !is_here() && at < all->size(); at += DataTicket::kWords) {
    const DataTicket ticket = DataTicket::of(all->data() + at);
    if (ticket.pid == 0 || ticket.node != node || ticket.source != source_) continue;
    auto taken = DataMemory::take(ticket);
    if (!taken) continue;
    memory_ = std::move(*taken);
    split_ = memory_->data();
  }
  return load();
}

}  // namespace ddp::train
