#include "rendezvous/listen_guard.h"

#include <algorithm>
#include <utility>

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kMaxRemembered = 4096;  // addresses that failed

}  // namespace

std::optional<LinkRefusal> ListenGuard::admit(Id id, const std::string& address, Time now) {
  const auto failed = failures_.find(address);
  if (failed != failures_.end() && now < failed->second.banned_until) return LinkRefusal::kTooMany;
  std::size_t& count = per_address_[address];
  if (count >= limits_.waiting_per_address) return LinkRefusal::kTooMany;
  ++count;
  waiting_.emplace(id, Waiting{address, now});
  return std::nullopt;
}

void ListenGuard::ended(Id id) {
  const auto entry = waiting_.find(id);
  if (entry == waiting_.end()) return;
  const auto count = per_address_.find(entry->second.address);
  if (--count->second == 0) per_address_.erase(count);
  waiting_.erase(entry);
}

void ListenGuard::failed(const std::string& address, Time now) {
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

/// The oldest of the address with the most: one address alone cannot push out the others.
std::map<ListenGuard::Id, ListenGuard::Waiting>::const_iterator ListenGuard::first_to_give_way() const {
  const auto most = std::max_element(per_address_.begin(), per_address_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [&](const auto& entry) { return entry.second.address == most->first; });
}

std::optional<ListenGuard::Time> ListenGuard::next_turn() const {
  if (waiting_.empty()) return std::nullopt;
  const Time silent = waiting_.begin()->second.since + limits_.deadline;
  return full() ? std::min(silent, first_to_give_way()->second.since + limits_.grace) : silent;
}

std::vector<ListenGuard::Overdue> ListenGuard::take_overdue(Time now) {
  std::vector<Overdue> overdue;
  while (!waiting_.empty() && now >= waiting_.begin()->second.since + limits_.deadline) {
    overdue.push_back({waiting_.begin()->first, LinkRefusal::kSilent});
    ended(overdue.back().id);
  }
  if (full() && !waiting_.empty()) {
    const auto slow = first_to_give_way();
    if (now >= slow->second.since + limits_.grace) {
      overdue.push_back({slow->first, LinkRefusal::kGaveWay});
      ended(overdue.back().id);
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
    line += " (" + std::to_string(count) + " more like it were not logged)";
  return line;
}

}  // namespace ddp::rendezvous
