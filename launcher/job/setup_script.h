#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "launcher/job/env_filter.h"

namespace ddp::launcher {

/// Sans-IO: what stands around the shell scripts of --setup on a node. A login shell reads the profile of the
/// user, then setup_prelude(), then the scripts; what it would then pass on is the workers' environment.

/// A script for sh that lays `forwarded` and `explicit_vars` over what the profile set, as merge_env lays
/// them over the node's own: PATH is the forwarded one with the entries appended that it lacks. Any byte
/// survives, in any locale.
std::string setup_prelude(const EnvVars& forwarded, const EnvVars& explicit_vars);

/// What the shell is started with: names of descriptors, and nothing of the user's. At `first_fd` lies the
/// dump, behind it the prelude, then the scripts. They run in the open, one after the other, so that `set -e`
/// means there what it means elsewhere; each must end well for the next. Into the dump go a mark for the
/// profile, for the prelude and for each script that ended well, then the environment.
std::string setup_command(std::size_t scripts, int first_fd);

/// How the shell of setup_command ended.
struct SetupEnd {
  bool success = false;    ///< exit code 0
  std::string how;         ///< "exited 3", "was killed by SIGKILL"
  std::string last_lines;  ///< SetupOutput::last_lines
};

/// The environment that it left, or kRefused with who ended it: the profile, or which script.
Result<EnvVars> setup_verdict(std::string_view dump, std::size_t scripts, const SetupEnd& end,
                              const EnvVars& before);

/// The environment after the scripts: `dump` is what `env -0` printed, `before` what they were given. What
/// belongs to the shell itself (PWD, SHLVL, _) stays as it was; so do variables with names that a shell does
/// not know how to pass on.
EnvVars setup_result(std::string_view dump, const EnvVars& before);

/// Takes the output of the scripts apart into lines fit to be shown; of too many, and of too long ones, the
/// rest is not passed on. Keeps the last ones for the message of a failure.
class SetupOutput {
 public:
  using LineHandler = std::function<void(const std::string&)>;

  explicit SetupOutput(LineHandler line) : line_(std::move(line)) {}
  void feed(std::string_view bytes);
  void end();  ///< passes on a last line without a line feed
  /// "; its last lines:" with the lines, each behind a line feed and two blanks; "; it printed nothing".
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

}  // namespace ddp::launcher
