#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/asio.h"
#include "base/child_process.h"

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

namespace ddp::launcher {

/// The output of a tool, and how it ended.
struct ToolOutput {
  std::string text;                  ///< stdout and stderr together, cut at the limit
  bool success = false;              ///< it exited 0
  std::optional<ExitStatus> status;  ///< unset: it was not started, or did not end in time
  std::string trouble;               ///< why it failed, such as "it exited 1"; else empty
};

/// Lets the owner end tools early: the running one, and those that would follow.
struct ToolStop {
  void stop() {
    stopped = true;
    if (kill) kill();
  }
  bool stopped = false;
  std::function<void()> kill;  ///< set by run_tool while a tool runs
};

/// Runs `spec` (out and err are set here) until it ends or until `deadline`, when its process group is
/// killed. Never fails: `trouble` reports problems. `pids` contains the child's pid while it runs, so that no
/// other component reaps it. `stop`, if given, ends the tool as the deadline would. Loop thread; the caller
/// keeps `pids` and `stop` alive.
Awaitable<ToolOutput> run_tool(ChildSpec spec, std::chrono::steady_clock::time_point deadline,
                               std::size_t limit, std::set<pid_t>* pids, ToolStop* stop = nullptr);

}  // namespace ddp::launcher
