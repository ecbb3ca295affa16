#include "remote/ssh/kerberos_ticket.h"

#include <utility>

#include "remote/shells/child_channel.h"

namespace ddp::remote {

Awaitable<bool> KerberosTicket::valid() {
  co_await asio::this_coro::throw_if_cancelled(false);
  const auto self = shared_from_this();
  if (!std::exchange(asked_, true)) {
    limit_.expires_after(kPatience);
    limit_.async_wait([self](const error_code& error) {
      if (!error) self->stop_.emit(asio::cancellation_type::terminal);
    });
    // ask() sets valid_ and ends, perhaps at once.
    asio::co_spawn(loop_, ask(self), asio::bind_cancellation_slot(stop_.slot(), asio::detached));
  }
  const bool known = co_await wait_until(known_, [this] { return valid_.has_value(); });
  co_return known&&* valid_;
}

Awaitable<void> KerberosTicket::ask(std::shared_ptr<KerberosTicket> self) {
  co_await asio::this_coro::throw_if_cancelled(false);
  bool valid = false;
  auto child = open_child(self->loop_, ChildCommand{"klist", {"klist", "-s"}, ChildCommand::Kind::kProgram});
  if (child) {
    const ChannelEnd end = co_await (*child)->end();
    valid = end.status == 0;
  }
  self->limit_.cancel();
  self->valid_ = valid;
  self->known_.cancel();
}

}  // namespace ddp::remote
