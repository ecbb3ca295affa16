#include "launcher/agent_core/worker_lives.h"

#include <algorithm>
#include <utility>

namespace ddp::launcher {

WorkerLife* WorkerLives::find(std::uint32_t local) {
  const auto found = lives_.find(local);
  return found == lives_.end() ? nullptr : &found->second;
}

void WorkerLives::begin_attempt() {
  greeted_told_ = ready_told_ = false;
  for (auto& [local, life] : lives_) {
    life.ready = life.answered = false;
    life.held.reset();
  }
}

void WorkerLives::greeted(std::uint32_t local, bool can_rejoin) {
  if (WorkerLife* life = find(local)) life->can_rejoin = can_rejoin;
}

void WorkerLives::ready(std::uint32_t local) {
  if (WorkerLife* life = find(local)) life->ready = true;
}

void WorkerLives::answered(std::uint32_t local, std::optional<std::uint64_t> held) {
  WorkerLife* life = find(local);
  if (life == nullptr) return;
  life->answered = true;
  life->held = held;
}

void WorkerLives::kill(std::uint32_t local, std::string why) {
  if (WorkerLife* life = find(local)) life->killed = std::move(why);
}

const std::string* WorkerLives::killed(std::uint32_t local) const {
  const auto found = lives_.find(local);
  return found != lives_.end() && found->second.killed ? &*found->second.killed : nullptr;
}

bool WorkerLives::greeted_is_news() {
  const bool all =
      std::all_of(lives_.begin(), lives_.end(), [](const auto& entry) { return entry.second.can_rejoin; });
  return all && !lives_.empty() && !std::exchange(greeted_told_, true);
}

bool WorkerLives::ready_is_news() {
  const bool all =
      std::all_of(lives_.begin(), lives_.end(), [](const auto& entry) { return entry.second.ready; });
  return all && !lives_.empty() && !std::exchange(ready_told_, true);
}

std::vector<std::uint32_t> WorkerLives::unanswered() const {
  std::vector<std::uint32_t> late;
  for (const auto& [local, life] : lives_)
    if (!life.answered && !life.killed) late.push_back(local);
  return late;
}

std::vector<std::uint32_t> WorkerLives::dying() const {
  std::vector<std::uint32_t> dying;
  for (const auto& [local, life] : lives_)
    if (life.killed) dying.push_back(local);
  return dying;
}

std::vector<rendezvous::Survivor> WorkerLives::survivors() const {
  std::vector<rendezvous::Survivor> survivors;
  for (const auto& [local, life] : lives_) {
    if (life.killed) continue;
    survivors.push_back({local, life.answered && life.held.has_value(), life.held.value_or(0)});
  }
  return survivors;
}

}  // namespace ddp::launcher
