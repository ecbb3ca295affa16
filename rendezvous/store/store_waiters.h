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

/// Names one connection to the store for its life; never reused.
using StoreConnectionId = std::uint64_t;

/// Bytes for a connection other than the one that asked.
struct StoreNotice {
  StoreConnectionId to = 0;
  std::string bytes;
};

/// What is being waited for, for the report of a job that hangs.
struct AwaitedKey {
  std::string key;
  std::size_t waiters = 0;
};

/// A map whose keys are looked up by view, without a copy.
struct StoreKeyHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <class T>
using StoreKeyMap = std::unordered_map<std::string, T, StoreKeyHash, std::equal_to<>>;

/// Which connection waits for which keys: waits are data, so that no connection stops being read for one.
/// Sans-IO. A connection has at most one wait. A key that was seen and goes again stays seen, as in PyTorch's
/// store.
class StoreWaiters {
 public:
  /// `missing`: the keys not there now, not empty; duplicates count once. Replaces the connection's wait.
  void add(StoreConnectionId id, std::vector<std::string> missing);
  void drop(StoreConnectionId id);

  /// The key is there: each connection for which it was the last one missing gets its wake-up byte.
  void wake_all(std::string_view key, std::vector<StoreNotice>& notices);
  /// A queue got one value: wakes the first connection that then has all it waits for, and notes the grant.
  void wake_one(std::string_view key, std::vector<StoreNotice>& notices);
  /// The queue that the connection was woken for and has not popped from; forgets it.
  std::optional<std::string> take_grant(StoreConnectionId id);

  std::size_t size() const { return waiters_.size(); }
  /// The keys waited for, most waiters first, at most `limit`.
  std::vector<AwaitedKey> awaited(std::size_t limit) const;

 private:
  struct Waiter {
    std::vector<std::string> keys;
    std::size_t missing = 0;
  };

  bool saw_key(StoreConnectionId id, std::vector<StoreNotice>& notices);

  std::unordered_map<StoreConnectionId, Waiter> waiters_;
  StoreKeyMap<std::vector<StoreConnectionId>> by_key_;  // first come first; no empty lists
  std::unordered_map<StoreConnectionId, std::string> grants_;
};

}  // namespace ddp::rendezvous
