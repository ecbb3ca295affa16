#include "launcher/supervisor/survivors.h"

#include <algorithm>
#include <utility>

namespace ddp::launcher {

void Survivors::begin(std::size_t parts, std::chrono::milliseconds limit, Time now) {
  silent_.clear();
  unready_.clear();
  for (std::size_t participant = 0; participant < parts; ++participant) {
    silent_.insert(silent_.end(), participant);
    unready_.insert(unready_.end(), participant);
  }
  trouble_due_.reset();
  reported_at_.reset();
  trouble_.clear();
  troubles_.clear();
  limit_ = limit;
  ready_due_.reset();
  if (can_survive_) ready_due_ = now + limit;
}

void Survivors::greeted(std::size_t participant) {
  silent_.erase(participant);
  if (!silent_.empty()) return;
  can_survive_ = true;
  trouble_due_ = reported_at_ ? std::optional(*reported_at_ + kTroubleTime) : std::nullopt;
}

bool Survivors::ready(std::size_t participant) {
  if (unready_.erase(participant) == 0 || !unready_.empty()) return false;
  ready_due_.reset();
  return true;
}

bool Survivors::heeds(std::uint32_t rank) {
  return ++troubles_[rank] <= kMostTroubles;
}

void Survivors::in_trouble(std::string words, Time now) {
  if (reported_at_) return;
  reported_at_ = now;
  trouble_ = std::move(words);
  if (can_survive_) trouble_due_ = now + kTroubleTime;
}

std::optional<Survivors::Time> Survivors::deadline() const {
  if (!ready_due_ || !trouble_due_) return ready_due_ ? ready_due_ : trouble_due_;
  return std::min(*ready_due_, *trouble_due_);
}

std::optional<std::string> Survivors::verdict(Time now) const {
  if (trouble_due_ && now >= *trouble_due_) return trouble_;
  if (!ready_due_ || now < *ready_due_) return {};
  return "not all ranks took part in the attempt within " + std::to_string(limit_.count() / 1000) +
         " s (--start-timeout)";
}

std::optional<Survivors::StateSource> Survivors::source(
    const rendezvous::World& world, const std::vector<std::vector<rendezvous::Survivor>>& waiting) {
  std::optional<StateSource> best;
  for (std::size_t participant = 0; participant < world.assignments.size(); ++participant) {
    for (const rendezvous::Survivor& survivor : waiting[participant]) {
      if (!survivor.holds_state || (best && survivor.step <= best->step)) continue;
      const auto first = static_cast<std::uint32_t>(world.assignments[participant].first_rank);
      best = StateSource{first + survivor.local_rank, survivor.step};
    }
  }
  return best;
}

}  // namespace ddp::launcher
