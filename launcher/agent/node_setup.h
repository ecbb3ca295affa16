#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/result.h"
#include "launcher/job/env_filter.h"
#include "launcher/job/setup_script.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Runs the shell scripts of --setup on this node, once, before any worker. The shell is bash as a login
/// shell (sh if bash is missing), so that `module` and the like are defined. Scripts and values appear
/// neither on a command line nor in a file. Loop thread; the owner keeps the object alive until run() and
/// listen() have returned.
class NodeSetup {
 public:
  explicit NodeSetup(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  NodeSetup(const NodeSetup&) = delete;
  NodeSetup& operator=(const NodeSetup&) = delete;

  /// Returns the workers' initial environment, as the scripts of `job` left it. `node_env` is the agent's own
  /// environment, `merged` that of merge_env for the job, `cwd` the scripts' directory; `line` takes their
  /// output. Errors: kRefused if a script failed or ended the shell, with its exit code and last lines;
  /// kCancelled after stop(); kSystem.
  Awaitable<Result<EnvVars>> run(rendezvous::JobStart job, EnvVars node_env, EnvVars merged, std::string cwd,
                                 SetupOutput::LineHandler line);

  /// Call after run() succeeded: goes on reading the output of programs that the scripts left running, since
  /// these would die of a pipe without a reader. Returns when no program holds the pipe, or after stop().
  Awaitable<> listen();

  /// Sends TERM to the shell and its group, and soon after KILL to all descendants of this process, which
  /// runs nothing else yet. run() then returns. Programs that successful scripts left running are not
  /// touched.
  void stop();

 private:
  struct Running;

  static Awaitable<> watch_end(std::shared_ptr<Running> running);

  asio::any_io_executor executor_;
  std::unique_ptr<SpawnPool> pool_;  ///< its thread outlives the shell, whose death signal is bound to it
  bool starting_ = false;            ///< the kernel reads the shell
  std::shared_ptr<Running> running_;
  bool stopped_ = false;
};

}  // namespace ddp::launcher
