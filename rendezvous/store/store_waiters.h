#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

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

  bool saw_key(StoreConnectionId id, std::vector<StoreNotice>& notices);

  std::unordered_map<StoreConnectionId, Waiter> waiters_;
  StoreKeyMap<std::vector<StoreConnectionId>> by_key_;  // in order of arrival; no empty lists
  std::unordered_map<StoreConnectionId, std::string> grants_;
};

}  // namespace ddp::rendezvous
