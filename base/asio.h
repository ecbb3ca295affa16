#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <tuple>
#include <utility>

// The only include of Asio, so that its settings (separate compilation, awaitables) are the same everywhere.
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace ddp {

namespace asio = boost::asio;
using boost::system::error_code;

template <class T = void>
using Awaitable = asio::awaitable<T>;

/// Completion token of every I/O await: co_await gives (error, value) and never throws.
inline constexpr auto kUseTuple = asio::as_tuple(asio::use_awaitable);

/// Runs a task by itself. An exception that crosses an await is an internal error and ends the program.
inline void spawn(const asio::any_io_executor& executor, Awaitable<> task) {
  asio::co_spawn(executor, std::move(task), [](const std::exception_ptr& broken) {
    if (broken) std::terminate();
  });
}

/// The tasks of an owner that waits for their ends.
class TaskGroup {
 public:
  explicit TaskGroup(const asio::any_io_executor& executor)
      : ended_(executor, std::chrono::steady_clock::time_point::max()) {}

  /// This object outlives the task.
  void start(Awaitable<> task) {
    ++running_;
    asio::co_spawn(ended_.get_executor(), std::move(task), [this](const std::exception_ptr& broken) {
      if (broken) std::terminate();  // internal error: no exception crosses an await here
      --running_;
      ended_.cancel();
    });
  }

  bool running() const { return running_ > 0; }

  /// Waits until a task ends.
  Awaitable<> one_end() { co_await ended_.async_wait(kUseTuple); }

  /// Waits until all tasks have ended, also those that start meanwhile.
  Awaitable<> all_ends() {
    while (running())
      co_await one_end();
  }

 private:
  asio::steady_timer ended_;  ///< cancelled when a task ends
  std::size_t running_ = 0;
};

Awaitable<> pause_for(asio::any_io_executor executor, std::chrono::nanoseconds time);

/// Waits until `over()` holds; each change of it cancels the wait on `changed`. Returns false if this task is
/// cancelled first.
template <class Condition>
Awaitable<bool> wait_until(asio::steady_timer& changed, Condition over) {
  co_await asio::this_coro::throw_if_cancelled(false);
  while (!over()) {
    co_await changed.async_wait(kUseTuple);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    if (state.cancelled() != asio::cancellation_type::none) co_return false;
  }
  co_return true;
}

/// Returns whether a read of `fd` would not block; for a pidfd, whether the process has ended.
inline bool is_readable(int fd) {
  pollfd look{fd, POLLIN, 0};
  return ::poll(&look, 1, 0) > 0;
}

/// Returns whether a write to `fd` would not block; for a connecting socket, whether the attempt is over.
inline bool is_writable(int fd) {
  pollfd look{fd, POLLOUT, 0};
  return ::poll(&look, 1, 0) > 0;
}

/// Waits until a read of `descriptor` would not block. Returns the error of a cancelled or closed descriptor.
/// For callers that take readiness itself as the event, as with ChildProcess::end_fd. async_wait alone is
/// unreliable: Asio (seen in 1.81) reuses the state of a closed descriptor for the next one opened. A queued
/// event of the closed descriptor then completes the wait of the new one.
Awaitable<error_code> until_readable(asio::posix::stream_descriptor& descriptor);

/// A two-way stream of bytes: a socket, a pair of pipes, or a TLS session. The control link uses it, so the
/// link does not depend on how a node was reached. At most one read and one write may be in progress at a
/// time.
class ByteStream {
 public:
  using Transferred = std::tuple<error_code, std::size_t>;

  virtual ~ByteStream() = default;
  virtual Awaitable<Transferred> read_some(asio::mutable_buffer buffer) = 0;
  virtual Awaitable<Transferred> write_some(asio::const_buffer buffer) = 0;
  /// Ends both directions; operations in progress complete with an error.
  virtual void close() = 0;
};

/// A ByteStream over Asio objects: one socket for both directions, or one descriptor for each.
template <class In, class Out>
class AsioStream final : public ByteStream {
 public:
  AsioStream(In in, Out out) : in_(std::forward<In>(in)), out_(std::forward<Out>(out)) {}

  Awaitable<Transferred> read_some(asio::mutable_buffer buffer) override {
    co_return co_await in_.async_read_some(buffer, kUseTuple);
  }
  Awaitable<Transferred> write_some(asio::const_buffer buffer) override {
    co_return co_await out_.async_write_some(buffer, kUseTuple);
  }
  void close() override {
    error_code ignored;
    in_.close(ignored);
    out_.close(ignored);
  }

 private:
  In in_;  // with a reference type the object belongs to the caller
  Out out_;
};

/// Wraps a socket that the caller owns and keeps alive.
template <class Socket>
std::unique_ptr<ByteStream> stream_over(Socket& socket) {
  return std::make_unique<AsioStream<Socket&, Socket&>>(socket, socket);
}

/// Prepares a connected TCP socket of a control link. Call it after connect() or accept(), since a short
/// limit of the back-off would also shorten the attempts to connect.
///
/// - Small messages are sent at once (TCP_NODELAY).
/// - The kernel repeats lost segments each second at the latest (TCP_RTO_MAX_MS, Linux 6.15). Older kernels
///   double the interval, so that a link may stay silent for as long again as the network was down.
/// - TCP itself does not end the link for 7 days. The leases and timeouts of master and agent end it, and
///   users choose those. Without TCP_USER_TIMEOUT a kernel with the short interval would give up after 15
///   repetitions, which is 14.4 s.
///
/// An option that the kernel does not know is skipped. Returns whether the back-off is limited.
bool set_link_options(int fd);

}  // namespace ddp
