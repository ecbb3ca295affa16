#pragma once

#include <memory>
#include <optional>

#include "base/asio.h"

namespace ddp::remote {

/// Finds out once for all hosts whether the user has a valid Kerberos ticket (`klist -s`). Loop thread only.
/// It is held by shared pointer, because the query may outlive its caller.
class KerberosTicket : public std::enable_shared_from_this<KerberosTicket> {
 public:
  explicit KerberosTicket(const asio::any_io_executor& loop)
      : loop_(loop), limit_(loop), known_(loop, std::chrono::steady_clock::time_point::max()) {}
  KerberosTicket(const KerberosTicket&) = delete;
  KerberosTicket& operator=(const KerberosTicket&) = delete;

  /// Returns false if there is no klist program, if it does not answer in time, or if the wait is cancelled.
  Awaitable<bool> valid();

  static constexpr std::chrono::seconds kPatience{5};  ///< for klist, which may wait for a network disk

 private:
  static Awaitable<void> ask(std::shared_ptr<KerberosTicket> self);

  asio::any_io_executor loop_;
  std::optional<bool> valid_;
  bool asked_ = false;
  asio::cancellation_signal stop_;
  asio::steady_timer limit_;
  asio::steady_timer known_;  ///< never expires; cancelled when valid_ is set
};

}  // namespace ddp::remote
