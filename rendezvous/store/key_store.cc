#include "rendezvous/store/key_store.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "base/text.h"

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

bool StoreWaiters::count_down(StoreConnectionId id, std::vector<StoreNotice>& notices) {
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
    count_down(id, notices);
}

void StoreWaiters::wake_one(std::string_view key, std::vector<StoreNotice>& notices) {
  const auto entry = by_key_.find(key);
  if (entry == by_key_.end()) return;
  std::vector<StoreConnectionId>& ids = entry->second;
  std::size_t passed = 0;
  bool woken = false;
  while (passed < ids.size() && !woken) {
    const StoreConnectionId id = ids[passed++];
    // A push has one value, so one waiter gets it. Those that still miss other keys are only counted down.
    woken = count_down(id, notices);
    if (!woken) continue;
    DDP_REQUIRE(!grants_.contains(id), id);
    // The value stays in the queue until the client pops it. Until then the grant says who was woken for it.
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

namespace {

void put_count(std::string& out, std::size_t count) {
  put_u64(out, count);
}

}  // namespace

Result<> KeyStore::handle(StoreConnectionId from, const StoreRequest& request, std::string& reply,
                          Notices& notices) {
  // Any request ends the wait of its connection: clients of torch ≤ 2.0 that time out send no CANCEL_WAIT
  // (docs/developers/store_protocol.md).
  waiters_.drop(from);
  leave_queue(from, request.op == StoreOp::kQueuePop ? &request.keys.front() : nullptr, notices);
  return dispatch(from, request, reply, notices);
}

Result<> KeyStore::dispatch(StoreConnectionId from, const StoreRequest& request, std::string& reply,
                            Notices& notices) {
  switch (request.op) {
    case StoreOp::kValidate: return {};
    case StoreOp::kSet: return put(request.keys[0], request.values[0], notices);
    case StoreOp::kCompareSet: return compare_set(request, reply, notices);
    case StoreOp::kGet:
    case StoreOp::kMultiGet: return multi_get(request, reply);
    case StoreOp::kAdd: return add(request, reply, notices);
    case StoreOp::kCheck: check(request, reply); return {};
    case StoreOp::kWait: wait(from, request, reply); return {};
    case StoreOp::kNumKeys: put_count(reply, values_.size()); return {};
    case StoreOp::kDeleteKey: delete_key(request, reply); return {};
    case StoreOp::kAppend: return append(request, notices);
    case StoreOp::kMultiSet: return multi_set(request, notices);
    case StoreOp::kCancelWait: put_u8(reply, kWaitCanceled); return {};
    case StoreOp::kPing: put_u32(reply, static_cast<std::uint32_t>(request.number)); return {};
    case StoreOp::kQueuePush: return queue_push(request, notices);
    case StoreOp::kQueuePop: queue_pop(request, reply); return {};
    case StoreOp::kQueueLen: queue_length(request, reply); return {};
    case StoreOp::kListKeys: return list_keys(reply);
    case StoreOp::kBarrier: return barrier(from, request, reply, notices);
  }
  DDP_REQUIRE(false && "the decoder produces only operations of the store", request.op);
  return {};
}

void KeyStore::close(StoreConnectionId from, Notices& notices) {
  // A waiter that is gone leaves its turn at a queue to the next one.
  waiters_.drop(from);
  leave_queue(from, nullptr, notices);
}

Result<> KeyStore::room_for(std::size_t more) const {
  if (more <= max_bytes_ && bytes_ <= max_bytes_ - more) return {};
  constexpr std::size_t kMiB = 1024 * 1024;
  return Error{ErrorCode::kSystem,
               "the store is full: " + std::to_string(bytes_ / kMiB) + " of " +
                   std::to_string(max_bytes_ / kMiB) + " MiB are used by " + counted(values_.size(), "key"),
               ENOMEM};
}

Result<> KeyStore::store(std::string_view key, std::string_view value) {
  const auto entry = values_.find(key);
  if (entry == values_.end()) {
    const std::size_t cost = key.size() + value.size() + kEntryCost;
    DDP_TRY(room_for(cost));
    values_.emplace(key, value);
    key_bytes_ += key.size();
    bytes_ += cost;
  } else {
    if (value.size() > entry->second.size()) {
      DDP_TRY(room_for(value.size() - entry->second.size()));
    }
    bytes_ += value.size() - entry->second.size();
    entry->second.assign(value);
  }
  DDP_REQUIRE(bytes_ <= max_bytes_, bytes_, max_bytes_);
  return {};
}

Result<> KeyStore::put(std::string_view key, std::string_view value, Notices& notices) {
  DDP_TRY(store(key, value));
  waiters_.wake_all(key, notices);
  return {};
}

// Parses as C's strtoll does, which PyTorch's store uses: blanks, a sign, digits; the rest is ignored.
Result<std::int64_t> KeyStore::number_under(std::string_view key) const {
  const auto entry = values_.find(key);
  if (entry == values_.end()) return 0;
  std::string_view text = entry->second;
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.starts_with('+')) text.remove_prefix(1);
  if (const auto value = leading_number<std::int64_t>(text)) return *value;
  return Error{ErrorCode::kProtocol,
               "cannot add to " + printable_key(key) + ": its value is not a 64-bit number"};
}

Result<> KeyStore::add(const StoreRequest& request, std::string& reply, Notices& notices) {
  const std::int64_t now = DDP_TRY(number_under(request.keys[0]));
  // Wraps as hardware does; signed overflow would be undefined.
  const auto sum =
      static_cast<std::int64_t>(static_cast<std::uint64_t>(now) + static_cast<std::uint64_t>(request.number));
  DDP_TRY(put(request.keys[0], std::to_string(sum), notices));
  put_u64(reply, static_cast<std::uint64_t>(sum));
  return {};
}

Result<> KeyStore::append(const StoreRequest& request, Notices& notices) {
  const std::string_view more = request.values[0];
  const auto entry = values_.find(request.keys[0]);
  if (entry == values_.end()) return put(request.keys[0], more, notices);
  if (entry->second.size() + more.size() > kMaxStoreValue) {
    return Error{ErrorCode::kProtocol, "APPEND: the value of " + printable_key(request.keys[0]) +
                                           " would grow over the store's limit of " +
                                           std::to_string(kMaxStoreValue) + " bytes"};
  }
  DDP_TRY(room_for(more.size()));
  entry->second.append(more);
  bytes_ += more.size();
  waiters_.wake_all(request.keys[0], notices);
  return {};
}

Result<> KeyStore::compare_set(const StoreRequest& request, std::string& reply, Notices& notices) {
  const std::string_view expected = request.values[0];
  const std::string_view desired = request.values[1];
  const auto entry = values_.find(request.keys[0]);
  const bool missing = entry == values_.end();
  const bool stores = missing ? expected.empty() : entry->second == expected;
  if (!stores) {
    // If the key is missing but a value was expected, the reply is the expected value: PyTorch's clients rely
    // on that.
    put_bytes(reply, missing ? expected : std::string_view(entry->second));
    return {};
  }
  DDP_TRY(put(request.keys[0], desired, notices));
  put_bytes(reply, desired);
  return {};
}

// GET is a MULTI_GET of one key. A missing key gives an empty value, since clients wait first.
Result<> KeyStore::multi_get(const StoreRequest& request, std::string& reply) const {
  // The size first, so that no memory is taken for a reply that is refused.
  std::size_t size = 0;
  for (const std::string_view key : request.keys) {
    const auto entry = values_.find(key);
    size += 8 + (entry == values_.end() ? 0 : entry->second.size());
    if (size > kMaxReply) {
      return Error{ErrorCode::kProtocol, "MULTI_GET: the reply would be over the store's limit of " +
                                             std::to_string(kMaxReply) + " bytes"};
    }
  }
  for (const std::string_view key : request.keys) {
    const auto entry = values_.find(key);
    put_bytes(reply, entry == values_.end() ? std::string_view() : std::string_view(entry->second));
  }
  return {};
}

Result<> KeyStore::multi_set(const StoreRequest& request, Notices& notices) {
  DDP_REQUIRE(request.keys.size() == request.values.size(), request.keys.size(), request.values.size());
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    DDP_TRY(put(request.keys[i], request.values[i], notices));
  }
  return {};
}

void KeyStore::delete_key(const StoreRequest& request, std::string& reply) {
  const auto entry = values_.find(request.keys[0]);
  put_count(reply, entry == values_.end() ? 0 : 1);
  if (entry == values_.end()) return;
  const std::size_t cost = entry->first.size() + entry->second.size() + kEntryCost;
  DDP_REQUIRE(cost <= bytes_ && entry->first.size() <= key_bytes_, cost, bytes_, key_bytes_);
  bytes_ -= cost;
  key_bytes_ -= entry->first.size();
  values_.erase(entry);
}

Result<> KeyStore::list_keys(std::string& reply) const {
  const std::size_t size = 8 + 8 * values_.size() + key_bytes_;
  if (size > kMaxKeyListReply) {
    return Error{ErrorCode::kProtocol, "LIST_KEYS: the reply would be over the store's limit of " +
                                           std::to_string(kMaxKeyListReply) + " bytes"};
  }
  std::vector<std::string_view> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_)
    keys.push_back(key);
  // The map has no order, and the protocol promises one.
  std::sort(keys.begin(), keys.end());
  put_count(reply, keys.size());
  for (const std::string_view key : keys)
    put_bytes(reply, key);
  return {};
}

Result<> KeyStore::queue_push(const StoreRequest& request, Notices& notices) {
  const std::size_t cost = request.keys[0].size() + request.values[0].size() + kEntryCost;
  DDP_TRY(room_for(cost));
  auto queue = queues_.find(request.keys[0]);
  if (queue == queues_.end()) queue = queues_.emplace(request.keys[0], std::deque<std::string>()).first;
  queue->second.emplace_back(request.values[0]);
  bytes_ += cost;
  waiters_.wake_one(request.keys[0], notices);
  return {};
}

// The reply is the length before the pop, then the value if there was one.
void KeyStore::queue_pop(const StoreRequest& request, std::string& reply) {
  const auto queue = queues_.find(request.keys[0]);
  put_count(reply, queue == queues_.end() ? 0 : queue->second.size());
  if (queue == queues_.end()) return;
  DDP_REQUIRE(!queue->second.empty() && queue->second.front().size() < bytes_, bytes_);
  const std::string& value = queue->second.front();
  put_bytes(reply, value);
  bytes_ -= queue->first.size() + value.size() + kEntryCost;
  queue->second.pop_front();
  if (queue->second.empty()) queues_.erase(queue);
}

void KeyStore::queue_length(const StoreRequest& request, std::string& reply) const {
  const auto queue = queues_.find(request.keys[0]);
  put_count(reply, queue == queues_.end() ? 0 : queue->second.size());
}

// Counts the caller under the key. The caller that completes the world wakes the others.
Result<> KeyStore::barrier(StoreConnectionId from, const StoreRequest& request, std::string& reply,
                           Notices& notices) {
  const std::string_view key = request.keys[0];
  const std::int64_t before = DDP_TRY(number_under(key));
  const std::int64_t count = before < std::numeric_limits<std::int64_t>::max() ? before + 1 : before;
  // store() and not put(): the key itself is no news for those that wait here, only its last count is.
  DDP_TRY(store(key, std::to_string(count)));
  if (count >= request.number) {
    waiters_.wake_all(key, notices);
    put_u8(reply, kStopWaiting);
  } else {
    waiters_.add(from, {std::string(key)});
  }
  return {};
}

void KeyStore::check(const StoreRequest& request, std::string& reply) const {
  bool all = true;
  for (const std::string_view key : request.keys)
    all = all && exists(key);
  put_u8(reply, all ? kCheckReady : kCheckNotReady);
}

void KeyStore::wait(StoreConnectionId from, const StoreRequest& request, std::string& reply) {
  std::vector<std::string> missing;
  for (const std::string_view key : request.keys) {
    if (!exists(key)) missing.emplace_back(key);
  }
  if (missing.empty()) {
    put_u8(reply, kStopWaiting);
    return;
  }
  waiters_.add(from, std::move(missing));
}

// A connection that was woken for a queue and did not pop leaves the value to the next waiter.
void KeyStore::leave_queue(StoreConnectionId from, const std::string_view* popped, Notices& notices) {
  const std::optional<std::string> granted = waiters_.take_grant(from);
  if (!granted || (popped != nullptr && *granted == *popped)) return;
  if (queues_.contains(*granted)) waiters_.wake_one(*granted, notices);
}

}  // namespace ddp::rendezvous
