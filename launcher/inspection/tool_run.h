#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <set>
#include <string>

#include "base/asio.h"
#include "base/child_process.h"

namespace ddp::launcher {

/// What a tool printed, and how it ended.
struct ToolOutput {
  std::string text;      ///< stdout and stderr together, cut at the limit
  bool success = false;  ///< it exited 0
  std::string trouble;   ///< why it did not: "it took longer than 10 s", "it exited 1"; empty: it did
};

/// By which the owner ends tools before their time: the one that runs, and those that would follow.
struct ToolStop {
  void stop() {
    stopped = true;
    if (kill) kill();
  }
  bool stopped = false;
  std::function<void()> kill;  ///< set by run_tool while a tool runs
};

/// Runs `spec` (its out and err are set here) until it ends or `deadline`, when its process group is killed.
/// Never fails: what goes wrong is told in `trouble`. `pids`: while it runs, the child's pid is in there, so
/// that nobody else reaps it. `stop`, when given, ends it as the deadline would. Loop thread; the caller
/// keeps `pids` and `stop` alive.
Awaitable<ToolOutput> run_tool(ChildSpec spec, std::chrono::steady_clock::time_point deadline,
                               std::size_t limit, std::set<pid_t>* pids, ToolStop* stop = nullptr);

}  // namespace ddp::launcher
