#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <utility>

#include "base/asio.h"

namespace ddp {

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

}  // namespace ddp
