#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "base/spawn_pool.h"
#include "launcher/job/env_filter.h"
#include "launcher/job/setup_script.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Runs the shell scripts of --setup on this node, once, before any worker: bash as a login shell (sh where
/// there is none), so that `module` and the like are known. Neither scripts nor values stand on a command
/// line or in a file. Loop thread; the owner keeps it alive until run() and listen() have returned.
class NodeSetup {
 public:
  explicit NodeSetup(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  NodeSetup(const NodeSetup&) = delete;
  NodeSetup& operator=(const NodeSetup&) = delete;

  /// The environment that the workers start from, as the scripts of `job` left it. `node_env` is the agent's
  /// own, `merged` merge_env's for the job, `cwd` where the scripts run, `line` takes what they print.
  /// Errors: kRefused when a script failed or ended the shell, with its exit code and last lines; kCancelled
  /// after stop(); kSystem.
  Awaitable<Result<EnvVars>> run(rendezvous::JobStart job, EnvVars node_env, EnvVars merged, std::string cwd,
                                 SetupOutput::LineHandler line);

  /// After run() ended well: goes on taking what the programs print that the scripts have left running, for
  /// these would die of a pipe that nobody reads. Returns when none of them holds it any more, or after
  /// stop().
  Awaitable<> listen();

  /// TERM to the shell and its group now, KILL to all that descends from this process soon after: nothing
  /// else runs yet. run() returns then. What scripts that ended well have left running is not touched.
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
