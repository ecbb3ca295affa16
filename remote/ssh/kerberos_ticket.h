#pragma once

#include <memory>
#include <optional>

#include "base/asio.h"

namespace ddp::remote {

/// Whether the user has a Kerberos ticket that has not expired, asked once for all hosts (`klist -s`). Loop
/// thread only; held by shared pointer, since a question may outlive who asked it.
class KerberosTicket : public std::enable_shared_from_this<KerberosTicket> {
 public:
  explicit KerberosTicket(const asio::any_io_executor& loop)
      : loop_(loop), limit_(loop), known_(loop, std::chrono::steady_clock::time_point::max()) {}
  KerberosTicket(const KerberosTicket&) = delete;
  KerberosTicket& operator=(const KerberosTicket&) = delete;

  /// False without a klist program, when it does not answer in time, and when the wait is cancelled.
  Awaitable<bool> valid();

  static constexpr std::chrono::seconds kPatience{5};  ///< with klist, which may wait for a network disk

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
