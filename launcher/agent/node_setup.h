#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/result.h"
#include "launcher/job/worker_env.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Sans-IO: the parts around the shell scripts of --setup on a node. A login shell reads the user's profile,
/// then setup_prelude(), then the scripts. The variables that it would then export are the workers'
/// environment.

/// Returns a script for sh that overlays the profile's variables with `forwarded` and `explicit_vars`, as
/// merge_env does with the node's environment. PATH is the forwarded one plus the entries that it lacks. Any
/// byte is preserved, in any locale.
std::string setup_prelude(const EnvVars& forwarded, const EnvVars& explicit_vars);

/// Returns the command of the shell. It has only descriptor numbers and no text of the user. `first_fd` is
/// the dump; the next descriptors are the prelude and the scripts. The scripts run one after the other at the
/// top level, so that `set -e` has its usual meaning. Each must succeed before the next one runs. The dump
/// gets a mark for the profile, for the prelude and for each successful script, then the environment.
std::string setup_command(std::size_t scripts, int first_fd);

/// The end of the shell of setup_command.
struct SetupEnd {
  bool success = false;    ///< exit code 0
  std::string how;         ///< "exited 3", "was killed by SIGKILL"
  std::string last_lines;  ///< SetupOutput::last_lines
};

/// Returns the resulting environment. Otherwise returns kRefused with the part that ended the shell: the
/// profile, or which script.
Result<EnvVars> setup_verdict(std::string_view dump, std::size_t scripts, const SetupEnd& end,
                              const EnvVars& before);

/// Returns the environment after the scripts. `dump` is the output of `env -0`, `before` the environment
/// before the scripts. Variables of the shell itself (PWD, SHLVL, _) keep their values, and so do variables
/// whose names a shell cannot export.
EnvVars setup_result(std::string_view dump, const EnvVars& before);

/// Splits the output of the scripts into printable lines. Drops the rest of an overlong line, and lines
/// beyond kMostLines. Keeps the last lines for an error message.
class SetupOutput {
 public:
  using LineHandler = std::function<void(const std::string&)>;

  explicit SetupOutput(LineHandler line) : line_(std::move(line)) {}
  void feed(std::string_view bytes);
  void end();  ///< passes on a last line without a line feed
  /// Returns "; its last lines:" with the lines, each after a line feed and two spaces; or "; it printed
  /// nothing".
  std::string last_lines() const;

  static constexpr std::size_t kMostLines = 500;
  static constexpr std::size_t kLongestLine = 400;
  static constexpr std::size_t kKept = 20;

 private:
  void finish_line();

  LineHandler line_;
  std::string open_;
  std::deque<std::string> last_;
  std::size_t count_ = 0;
};

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
