#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "rendezvous/store/tcp_store_codec.h"

namespace ddp::rendezvous {

/// Identifies one connection to the store; never reused.
using StoreConnectionId = std::uint64_t;

/// Bytes for a connection other than the one that sent the request.
struct StoreNotice {
  StoreConnectionId to = 0;
  std::string bytes;
};

/// A map that finds keys by string_view, without a copy.
struct StoreKeyHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <class T>
using StoreKeyMap = std::unordered_map<std::string, T, StoreKeyHash, std::equal_to<>>;

/// Records which connection waits for which keys. A waiting connection is still read, since its wait is only
/// data. Sans-IO. A connection has at most one wait. A key that appeared and was deleted again still counts,
/// as in PyTorch's store.
class StoreWaiters {
 public:
  /// `missing`: the keys that do not exist, at least one; duplicates count once. The connection must have
  /// no wait: each request ends the one before (drop).
  void add(StoreConnectionId id, std::vector<std::string> missing);
  void drop(StoreConnectionId id);
  /// Returns the memory that the connection's wait takes, about; 0 without one.
  std::size_t bytes_of(StoreConnectionId id) const;

  /// Call it when the key exists: each connection that missed only this key gets its wake-up byte.
  void wake_all(std::string_view key, std::vector<StoreNotice>& notices);
  /// Call it when a queue got one value: wakes the first connection that then misses no key, and records the
  /// grant.
  void wake_one(std::string_view key, std::vector<StoreNotice>& notices);
  /// Returns and forgets the queue for which the connection was woken and from which it has not popped.
  std::optional<std::string> take_grant(StoreConnectionId id);

  bool empty() const { return waiters_.empty() && by_key_.empty(); }

 private:
  struct Waiter {
    std::vector<std::string> keys;
    std::size_t missing = 0;
    std::size_t bytes = 0;
  };
  static constexpr std::size_t kKeyCost = 320;  ///< of a key beside two copies of its text

  /// One key fewer of the waiter is missing. If that was the last, wakes its connection and returns true.
  bool count_down(StoreConnectionId id, std::vector<StoreNotice>& notices);

  std::unordered_map<StoreConnectionId, Waiter> waiters_;
  StoreKeyMap<std::vector<StoreConnectionId>> by_key_;  // in order of arrival; no empty lists
  std::unordered_map<StoreConnectionId, std::string> grants_;
};

/// The store's keys, queues and waiters. Sans-IO: requests in, replies out; one thread. The driver's duties:
///   1. Call handle() for each request in the order of arrival, even while that connection waits. A request
///      after an unanswered WAIT drops the waiter. So an old client that gave up never finds a late byte
///      before its next reply.
///   2. Send `reply` to the asker and each notice to its connection, in the order given.
///   3. On an Error close the connection, and call close() for every connection that ends.
class KeyStore {
 public:
  /// `max_bytes` bounds keys, values and queues together; an entry costs its bytes and kEntryCost.
  explicit KeyStore(std::size_t max_bytes = kDefaultMaxBytes) : max_bytes_(max_bytes) {}

  static constexpr std::size_t kDefaultMaxBytes = std::size_t{4} << 30;
  static constexpr std::size_t kEntryCost = 128;
  /// Limit of one MULTI_GET reply.
  static constexpr std::size_t kMaxReply = 2 * kMaxStoreValue;
  /// Limit of one LIST_KEYS reply: a request of one byte must not cost more than others.
  static constexpr std::size_t kMaxKeyListReply = 1024 * 1024;

  /// Handles `request` of connection `from`. Appends the reply, if any, to `reply`, and the bytes for other
  /// connections to `notices`. On an Error `reply` is unchanged: kProtocol, nonsense such as an ADD to text;
  /// kSystem (ENOMEM), the store is full.
  Result<> handle(StoreConnectionId from, const StoreRequest& request, std::string& reply,
                  std::vector<StoreNotice>& notices);
  /// Drops the connection's wait.
  void close(StoreConnectionId from, std::vector<StoreNotice>& notices);
  /// Returns the memory that the connection's wait takes, about. It is beside `max_bytes`.
  std::size_t wait_bytes(StoreConnectionId from) const { return waiters_.bytes_of(from); }

  std::size_t bytes() const { return bytes_; }
  /// Returns whether a connection has a pending WAIT or BARRIER.
  bool has_waiters() const { return !waiters_.empty(); }

 private:
  using Notices = std::vector<StoreNotice>;

  Result<> dispatch(StoreConnectionId from, const StoreRequest& request, std::string& reply,
                    Notices& notices);
  // A non-empty queue counts as an existing key: a blocking pop is a WAIT and a QUEUE_POP.
  bool exists(std::string_view key) const { return values_.contains(key) || queues_.contains(key); }
  Result<> room_for(std::size_t more) const;
  Result<> store(std::string_view key, std::string_view value);
  Result<> put(std::string_view key, std::string_view value, Notices& notices);
  Result<std::int64_t> number_under(std::string_view key) const;
  void leave_queue(StoreConnectionId from, const std::string_view* popped, Notices& notices);

  Result<> add(const StoreRequest& request, std::string& reply, Notices& notices);
  Result<> append(const StoreRequest& request, Notices& notices);
  Result<> compare_set(const StoreRequest& request, std::string& reply, Notices& notices);
  Result<> multi_get(const StoreRequest& request, std::string& reply) const;
  Result<> multi_set(const StoreRequest& request, Notices& notices);
  Result<> list_keys(std::string& reply) const;
  Result<> queue_push(const StoreRequest& request, Notices& notices);
  Result<> barrier(StoreConnectionId from, const StoreRequest& request, std::string& reply, Notices& notices);
  void wait(StoreConnectionId from, const StoreRequest& request, std::string& reply);
  void check(const StoreRequest& request, std::string& reply) const;
  void delete_key(const StoreRequest& request, std::string& reply);
  void queue_pop(const StoreRequest& request, std::string& reply);
  void queue_length(const StoreRequest& request, std::string& reply) const;

  std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::size_t key_bytes_ = 0;  ///< of the keys in values_
  StoreKeyMap<std::string> values_;
  StoreKeyMap<std::deque<std::string>> queues_;  // no empty queues
  StoreWaiters waiters_;
};

}  // namespace ddp::rendezvous
