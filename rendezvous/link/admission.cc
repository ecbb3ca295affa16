#include "rendezvous/link/admission.h"

#include <algorithm>

#include "base/result.h"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kMaxRemembered = 4096;  // addresses that failed

}  // namespace

std::optional<LinkRefusal> AdmissionLimiter::admit(Id id, const std::string& address, Time now) {
  const auto failed = failures_.find(address);
  if (failed != failures_.end() && now < failed->second.banned_until) return LinkRefusal::kTooMany;
  if (!make_room(address, now)) return LinkRefusal::kTooMany;
  DDP_REQUIRE(waiting_.empty() || waiting_.rbegin()->first < id, id);
  AddressCounts& counts = per_address_[address];
  ++counts.all;
  ++counts.silent;
  waiting_.emplace(id, PendingConnection{address, now});
  return std::nullopt;
}

bool AdmissionLimiter::make_room(const std::string& address, Time now) {
  const auto counts = per_address_.find(address);
  const std::size_t silent = counts == per_address_.end() ? 0 : counts->second.silent;
  if (silent < limits_.silent_per_address) return true;
  const auto oldest = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& entry) {
    return entry.second.address == address && !entry.second.greeted;
  });
  if (oldest == waiting_.end() || now < oldest->second.since + limits_.grace) return false;
  displaced_.push_back({oldest->first, LinkRefusal::kEvicted});
  ended(oldest->first);
  return true;
}

void AdmissionLimiter::greeted(Id id) {
  const auto entry = waiting_.find(id);
  if (entry == waiting_.end() || std::exchange(entry->second.greeted, true)) return;
  std::size_t& silent = per_address_[entry->second.address].silent;
  DDP_REQUIRE(silent > 0, id);
  --silent;
}

void AdmissionLimiter::ended(Id id) {
  const auto entry = waiting_.find(id);
  if (entry == waiting_.end()) return;
  const auto counts = per_address_.find(entry->second.address);
  DDP_REQUIRE(counts != per_address_.end() && counts->second.all > 0, id);
  DDP_REQUIRE(entry->second.greeted || counts->second.silent > 0, id, counts->second.all);
  if (!entry->second.greeted) --counts->second.silent;
  if (--counts->second.all == 0) per_address_.erase(counts);
  waiting_.erase(entry);
}

void AdmissionLimiter::failed(const std::string& address, Time now) {
  if (failures_.size() >= kMaxRemembered && !failures_.contains(address)) {
    std::erase_if(failures_, [&](const auto& entry) {
      return now >= entry.second.since + limits_.window && now >= entry.second.banned_until;
    });
    if (failures_.size() >= kMaxRemembered) return;
  }
  Failures& failures = failures_[address];
  if (failures.count == 0 || now >= failures.since + limits_.window) {
    failures.count = 0;
    failures.since = now;
  }
  if (++failures.count < limits_.failures) return;
  failures.count = 0;
  failures.banned_until = now + limits_.ban;
}

/// Chooses the oldest connection of the address with the most connections, so that one address cannot evict
/// the others. Connections without a good hello go first.
std::pair<AdmissionLimiter::Id, AdmissionLimiter::Time> AdmissionLimiter::next_to_evict() const {
  const auto most =
      std::max_element(per_address_.begin(), per_address_.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second.silent, a.second.all) < std::pair(b.second.silent, b.second.all);
      });
  const bool silent = most->second.silent > 0;
  const auto first = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& entry) {
    return entry.second.address == most->first && entry.second.greeted != silent;
  });
  DDP_REQUIRE(first != waiting_.end() && "the counts are those of the waiting connections", waiting_.size());
  return {first->first, first->second.since + (silent ? limits_.grace : 8 * limits_.grace)};
}

std::optional<AdmissionLimiter::Time> AdmissionLimiter::next_turn() const {
  if (!displaced_.empty()) return Time::min();
  if (waiting_.empty()) return std::nullopt;
  const Time silent = waiting_.begin()->second.since + limits_.deadline;
  return full() ? std::min(silent, next_to_evict().second) : silent;
}

std::vector<AdmissionLimiter::Overdue> AdmissionLimiter::take_overdue(Time now) {
  std::vector<Overdue> overdue = std::exchange(displaced_, {});
  while (!waiting_.empty() && now >= waiting_.begin()->second.since + limits_.deadline) {
    overdue.push_back({waiting_.begin()->first, LinkRefusal::kSilent});
    ended(overdue.back().id);
  }
  if (full() && !waiting_.empty()) {
    const auto [id, from] = next_to_evict();
    if (now >= from) {
      overdue.push_back({id, LinkRefusal::kEvicted});
      ended(id);
    }
  }
  return overdue;
}

std::optional<std::string> RefusalLog::pass(LinkRefusal why, const std::string& address, std::string line,
                                            Time now) {
  if (now >= since_ + kWindow) {
    since_ = now;
    said_.clear();
  }
  if (said_.size() >= kLines || !said_.emplace(why, address).second) {
    ++unsaid_[why];
    return std::nullopt;
  }
  if (const std::size_t count = std::exchange(unsaid_[why], 0); count > 0)
    line += " (" + std::to_string(count) + " more of this kind were not logged)";
  return line;
}

}  // namespace ddp::rendezvous
