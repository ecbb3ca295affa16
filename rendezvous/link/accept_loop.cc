#include "rendezvous/link/accept_loop.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace ddp::rendezvous {
namespace {

constexpr int kAcceptsAtOnce = 64;
constexpr std::size_t kMaxRemembered = 4096;  // addresses reported to on_refused
constexpr auto kRest = std::chrono::milliseconds(100);

bool is_starvation(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

AcceptLoop::AcceptLoop(asio::any_io_executor executor, AddressFilter filter, Callbacks callbacks)
    : executor_(std::move(executor)),
      filter_(std::move(filter)),
      callbacks_(std::move(callbacks)),
      retry_(executor_) {}

Result<std::shared_ptr<AcceptLoop>> AcceptLoop::start(asio::any_io_executor executor, TcpListener listener,
                                                      AddressFilter filter, Callbacks callbacks) {
  std::shared_ptr<AcceptLoop> loop(
      new AcceptLoop(std::move(executor), std::move(filter), std::move(callbacks)));
  for (UniqueFd& fd : listener.fds) {
    error_code ec;
    auto& added = loop->listeners_.emplace_back(loop->executor_);
    added.assign(fd.get(), ec);
    if (ec) return system_error(ec.value(), "watch port " + std::to_string(listener.port));
    fd.release();
  }
  for (std::size_t i = 0; i < loop->listeners_.size(); ++i)
    loop->await(i);
  return loop;
}

void AcceptLoop::stop() {
  stopped_ = true;
  retry_.cancel();
  listeners_.clear();
}

void AcceptLoop::await(std::size_t index) {
  listeners_[index].async_wait(asio::posix::stream_descriptor::wait_read,
                               [self = shared_from_this(), index](const error_code& ec) {
                                 if (!ec && !self->stopped_) self->accept_some(index);
                               });
}

void AcceptLoop::accept_some(std::size_t index) {
  for (int i = 0; i < kAcceptsAtOnce && !stopped_ && !paused_; ++i) {
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    UniqueFd socket(::accept4(listeners_[index].native_handle(), reinterpret_cast<sockaddr*>(&storage), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EAGAIN) break;
      if (is_starvation(errno)) return rest();
      continue;  // an error of this one connection: the peer hung up, a firewall refused it, or a signal came
    }
    const asio::ip::address address = address_of(storage);
    if (filter_.allows(address)) {
      callbacks_.on_connection(std::move(socket), address);
    } else {
      refuse(address);
    }
  }
  if (!stopped_ && !paused_) await(index);
}

void AcceptLoop::refuse(const asio::ip::address& address) {
  if (refused_from_.size() >= kMaxRemembered || !refused_from_.insert(address).second) return;
  if (callbacks_.on_refused) callbacks_.on_refused(address);
}

// A ready listener without a free descriptor would spin, so accepting pauses until a descriptor may be free.
void AcceptLoop::rest() {
  if (resting_) return;
  resting_ = true;
  retry_.expires_after(kRest);
  retry_.async_wait([self = shared_from_this()](const error_code&) { self->resume(); });
}

void AcceptLoop::descriptor_freed() {
  if (resting_) retry_.cancel();
}

void AcceptLoop::resume() {
  if (!resting_ || stopped_) return;
  resting_ = false;
  await_all();
}

void AcceptLoop::go_on() {
  if (!paused_ || stopped_) return;
  paused_ = false;
  // Posted, since the caller may be a callback of accept_some, which then waits again itself.
  asio::post(executor_, [self = shared_from_this()] {
    if (!self->stopped_ && !self->paused_) self->await_all();
  });
}

void AcceptLoop::await_all() {
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    listeners_[i].cancel();  // a listener that did not rest still has a wait
    await(i);
  }
}

}  // namespace ddp::rendezvous
