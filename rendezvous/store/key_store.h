#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rendezvous/store/store_waiters.h"
#include "rendezvous/store/tcp_store_codec.h"

namespace ddp::rendezvous {

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
  bool exists(std::string_view key) const;
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
