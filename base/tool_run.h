#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/exit_status.h"
#include "base/result.h"

namespace ddp {

/// The program argv[0], which is searched in this process's PATH, with this process's environment. Error:
/// kExec.
Result<ChildSpec> own_child(std::vector<std::string> argv);

/// The output of a tool, and how it ended.
struct ToolOutput {
  std::string text;  ///< stdout, and stderr unless ChildSpec::err had a descriptor
  bool cut = false;  ///< there was more than the limit; `text` ends with a note about it
  /// Errors: as `spawn`; kTimeout, it was killed at the deadline; kCancelled, it was not started.
  Result<ExitStatus> status = Error{ErrorCode::kCancelled, "it was not started"};

  bool success() const { return status && status->success(); }  ///< it exited 0
  std::string trouble() const;  ///< why it failed, such as "it exited 1"; else empty
};

/// Lets the owner end tools early: the running one, and those that would follow.
struct ToolStop {
  void stop() {
    stopped = true;
    if (kill) kill();
  }
  bool stopped = false;
  bool at_limit = false;       ///< a tool that prints more than the limit is killed, since it may never end
  std::function<void()> kill;  ///< set by run_tool while a tool runs
};

/// Runs `spec` (out is set here, as is err where it is kDevNull) until it ends or until `deadline`, when its
/// process group is killed. Reads all of its output and keeps the first `limit` bytes. `pids`, if given,
/// contains the child's pid while it runs, so that no other component reaps it. `stop`, if given, ends the
/// tool as the deadline would. Loop thread; the caller keeps `pids` and `stop` alive.
Awaitable<ToolOutput> run_tool(ChildSpec spec, std::chrono::steady_clock::time_point deadline,
                               std::size_t limit, std::set<pid_t>* pids = nullptr, ToolStop* stop = nullptr);

/// As run_tool with ToolStop::at_limit, for a thread without a loop: waits for the end. Thread-safe.
ToolOutput wait_for_tool(ChildSpec spec, std::chrono::steady_clock::time_point deadline, std::size_t limit);

}  // namespace ddp
