#include "rendezvous/store/store_waiters.h"

#include <algorithm>
#include <utility>

#include "base/require.h"
#include "rendezvous/store/tcp_store_codec.h"

namespace ddp::rendezvous {

void StoreWaiters::add(StoreConnectionId id, std::vector<std::string> missing) {
  DDP_REQUIRE(!missing.empty() && !waiters_.contains(id) && !grants_.contains(id), id, missing.size());
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  Waiter& waiter = waiters_[id];
  for (const std::string& key : missing) {
    by_key_[key].push_back(id);
    waiter.bytes += 2 * key.size() + kKeyCost;
  }
  waiter.missing = missing.size();
  waiter.keys = std::move(missing);
}

std::size_t StoreWaiters::bytes_of(StoreConnectionId id) const {
  const auto waiter = waiters_.find(id);
  return waiter == waiters_.end() ? 0 : waiter->second.bytes;
}

void StoreWaiters::drop(StoreConnectionId id) {
  if (waiters_.empty()) return;
  const auto waiter = waiters_.find(id);
  if (waiter == waiters_.end()) return;
  std::size_t listed = 0;
  for (const std::string& key : waiter->second.keys) {
    const auto entry = by_key_.find(key);
    if (entry == by_key_.end()) continue;
    listed += std::erase(entry->second, id);
    if (entry->second.empty()) by_key_.erase(entry);
  }
  DDP_REQUIRE(listed == waiter->second.missing, listed, waiter->second.missing);
  waiters_.erase(waiter);
}

bool StoreWaiters::saw_key(StoreConnectionId id, std::vector<StoreNotice>& notices) {
  const auto waiter = waiters_.find(id);
  DDP_REQUIRE(waiter != waiters_.end() && waiter->second.missing > 0, id);  // none is woken twice
  if (--waiter->second.missing > 0) return false;
  waiters_.erase(waiter);
  notices.push_back({id, std::string(1, static_cast<char>(kStopWaiting))});
  return true;
}

void StoreWaiters::wake_all(std::string_view key, std::vector<StoreNotice>& notices) {
  if (by_key_.empty()) return;
  const auto entry = by_key_.find(key);
  if (entry == by_key_.end()) return;
  const std::vector<StoreConnectionId> ids = std::move(entry->second);
  by_key_.erase(entry);
  for (const StoreConnectionId id : ids)
    saw_key(id, notices);
}

void StoreWaiters::wake_one(std::string_view key, std::vector<StoreNotice>& notices) {
  const auto entry = by_key_.find(key);
  if (entry == by_key_.end()) return;
  std::vector<StoreConnectionId>& ids = entry->second;
  std::size_t passed = 0;
  bool woken = false;
  while (passed < ids.size() && !woken) {
    const StoreConnectionId id = ids[passed++];
    woken = saw_key(id, notices);
    if (!woken) continue;
    DDP_REQUIRE(!grants_.contains(id), id);
    grants_.emplace(id, key);
  }
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(passed));
  if (ids.empty()) by_key_.erase(entry);
}

std::optional<std::string> StoreWaiters::take_grant(StoreConnectionId id) {
  if (grants_.empty()) return std::nullopt;
  const auto grant = grants_.find(id);
  if (grant == grants_.end()) return std::nullopt;
  std::optional<std::string> key = std::move(grant->second);
  grants_.erase(grant);
  return key;
}

}  // namespace ddp::rendezvous
