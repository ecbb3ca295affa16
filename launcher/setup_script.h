#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "launcher/env_filter.h"

namespace ddp::launcher {

/// Sans-IO: what stands around the shell scripts of --setup on a node. A login shell reads the profile of the
/// user, then setup_prelude(), then the scripts; what it would then pass on is the workers' environment.

/// A script for sh that lays `forwarded` and `explicit_vars` over what the profile set, as merge_env lays
/// them over the node's own: PATH is the forwarded one with the entries appended that it lacks. Any byte
/// survives, in any locale.
std::string setup_prelude(const EnvVars& forwarded, const EnvVars& explicit_vars);

/// The environment after the scripts: `dump` is what `env -0` printed, `before` what they were given. What
/// belongs to the shell itself (PWD, SHLVL, _) stays as it was; so do variables with names that a shell does
/// not know how to pass on. An empty dump: the scripts ended the shell.
EnvVars setup_result(std::string_view dump, const EnvVars& before);

/// Takes the output of the scripts apart into lines fit to be shown; of too many, and of too long ones, the
/// rest is not passed on. Keeps the last ones for the message of a failure.
class SetupOutput {
 public:
  using Line = std::function<void(const std::string&)>;

  explicit SetupOutput(Line line) : line_(std::move(line)) {}
  void feed(std::string_view bytes);
  void end();  ///< passes on a last line without a line feed
  /// "; its last lines:" with the lines, each behind a line feed and two blanks; "; it printed nothing".
  std::string last_lines() const;

  static constexpr std::size_t kMostLines = 500;
  static constexpr std::size_t kLongestLine = 400;
  static constexpr std::size_t kKept = 20;

 private:
  void finish_line();

  Line line_;
  std::string open_;
  std::deque<std::string> last_;
  std::size_t count_ = 0;
};

}  // namespace ddp::launcher
