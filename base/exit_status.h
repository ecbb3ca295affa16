#pragma once

#include <csignal>
#include <string>
#include <string_view>

namespace ddp {

/// The end of a process: a value made once from the result of waitid, never a raw status word.
struct ExitStatus {
  enum class Kind {
    kExited,    ///< number = exit code
    kSignaled,  ///< number = signal
    kUnknown,   ///< the process is gone and its status is lost (SIGCHLD ignored, or reaped elsewhere)
  };
  Kind kind = Kind::kUnknown;
  int number = 0;
  bool core_dumped = false;

  static ExitStatus exited(int code) { return {Kind::kExited, code, false}; }
  static ExitStatus signaled(int signal, bool core = false) { return {Kind::kSignaled, signal, core}; }
  /// Converts a siginfo_t that waitid(WEXITED) has filled.
  static ExitStatus from_siginfo(const siginfo_t& info);

  bool success() const { return kind == Kind::kExited && number == 0; }

  /// The exit code as in shells: the code, 128 + signal, or 255 when unknown.
  int exit_code() const;

  /// "exited 3", "killed by SIGSEGV, core dumped", "ended, exit status unknown".
  std::string text() const;

  bool operator==(const ExitStatus&) const = default;
};

/// "SIGTERM", "SIGRTMIN+2", "signal 99".
std::string signal_name(int signal);

}  // namespace ddp
