#pragma once

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
#include <chrono>
#include <exception>
#include <utility>

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

inline Awaitable<> pause_for(asio::any_io_executor executor, std::chrono::nanoseconds time) {
  asio::steady_timer timer(executor, time);
  co_await timer.async_wait(kUseTuple);
}

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

}  // namespace ddp
