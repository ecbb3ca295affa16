#include "launcher/supervisor/survivors.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/text.h"

namespace ddp::launcher {

void Survivors::wait(std::size_t node, std::vector<rendezvous::Survivor> survivors, std::uint32_t workers) {
  // The list comes from a node, and its local ranks become ranks of the next world.
  std::erase_if(survivors, [workers](const auto& survivor) { return survivor.local_rank >= workers; });
  waiting_[node] = std::move(survivors);
}

void Survivors::begin(const rendezvous::World& world, std::chrono::milliseconds limit, Time now) {
  // Before waiting_ is cleared, from which it reads.
  find_source(world);
  waiting_.clear();
  silent_.clear();
  unready_.clear();
  for (std::size_t participant = 0; participant < world.assignments.size(); ++participant) {
    silent_.insert(silent_.end(), participant);
    unready_.insert(unready_.end(), participant);
  }
  participants_ = world.assignments.size();
  trouble_due_.reset();
  reported_at_.reset();
  troubles_.clear();
  began_ = now;
  by_slowest_ = 2 * slowest_ > limit;
  limit_ = by_slowest_ ? 2 * slowest_ : limit;
  ready_due_.reset();
  // In the attempt in which the workers greet for the first time nobody knows yet whether they speak the
  // protocol.
  if (can_survive_) ready_due_ = now + limit_;
}

bool Survivors::greeted(std::size_t participant) {
  silent_.erase(participant);
  if (!silent_.empty()) return false;
  // A report may come before the last rank has greeted, when it could not be acted on.
  trouble_due_ = reported_at_ ? std::optional(*reported_at_ + kTroubleTime) : std::nullopt;
  return !std::exchange(can_survive_, true);
}

bool Survivors::ready(std::size_t participant, Time now) {
  if (!ended(participant)) return false;
  slowest_ = std::max(slowest_, now - began_);
  return true;
}

bool Survivors::ended(std::size_t participant) {
  if (unready_.erase(participant) == 0 || !unready_.empty()) return false;
  ready_due_.reset();
  return true;
}

bool Survivors::accepts_report(std::uint32_t rank) {
  return ++troubles_[rank] <= kMostTroubles;
}

void Survivors::in_trouble(std::string words, Time now) {
  // The first report starts the clock. Later ones are usually echoes of it.
  if (reported_at_) return;
  reported_at_ = now;
  trouble_ = std::move(words);
  if (can_survive_) trouble_due_ = now + kTroubleTime;
}

std::optional<Survivors::Time> Survivors::deadline() const {
  if (!ready_due_ || !trouble_due_) return ready_due_ ? ready_due_ : trouble_due_;
  return std::min(*ready_due_, *trouble_due_);
}

std::set<std::size_t> Survivors::late(Time now) const {
  std::set<std::size_t> late;
  if (!ready_due_ || now < *ready_due_ || silent_.size() == participants_) return late;
  std::ranges::set_intersection(silent_, unready_, std::inserter(late, late.end()));
  return late;
}

std::string Survivors::limit_text() const {
  return format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(limit_)) +
         (by_slowest_ ? " (twice the slowest start so far)" : " (--start-timeout)");
}

std::optional<std::string> Survivors::verdict(Time now) const {
  if (trouble_due_ && now >= *trouble_due_) return trouble_;
  if (!ready_due_ || now < *ready_due_) return {};
  return "not all ranks took part in the attempt within " + limit_text();
}

void Survivors::find_source(const rendezvous::World& world) {
  source_.reset();
  for (const rendezvous::RankAssignment& ranks : world.assignments) {
    const auto waiting = waiting_.find(ranks.host);
    if (waiting == waiting_.end()) continue;
    for (const rendezvous::Survivor& survivor : waiting->second) {
      if (!survivor.holds_state || (source_ && survivor.step <= source_->step)) continue;
      source_ = {static_cast<std::uint32_t>(ranks.first_rank) + survivor.local_rank, survivor.step};
    }
  }
}

std::string Survivors::lost_state_text(std::uint32_t attempt) const {
  if (attempt == 0 || !can_survive_ || source_) return {};
  return "attempt " + std::to_string(attempt) +
         ": no surviving rank holds the training's state; training starts from the last checkpoint, or from "
         "step 0";
}

std::string Survivors::ready_text(std::uint32_t attempt, int world_size, Time now) const {
  if (!source_) return {};
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now - revoked_at_);
  return "attempt " + std::to_string(attempt) + ": " +
         counted(world_size, "rank continues", "ranks continue") + " from step " +
         std::to_string(source_->step) + " (state of rank " + std::to_string(source_->rank) +
         "), recovered in " + std::to_string(took.count()) + " ms";
}

}  // namespace ddp::launcher
