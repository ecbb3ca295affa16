#include "base/exit_status.h"

#include <array>
#include <cstddef>

namespace ddp {
namespace {

/// The signals from number 1 (signal(7)). glibc has them since 2.32 only, and train runs with older ones.
constexpr std::array kSignals = {
    "SIGHUP",  "SIGINT",    "SIGQUIT", "SIGILL",   "SIGTRAP", "SIGABRT", "SIGBUS",  "SIGFPE",
    "SIGKILL", "SIGUSR1",   "SIGSEGV", "SIGUSR2",  "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT",
    "SIGCHLD", "SIGCONT",   "SIGSTOP", "SIGTSTP",  "SIGTTIN", "SIGTTOU", "SIGURG",  "SIGXCPU",
    "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGPOLL", "SIGPWR",  "SIGSYS"};
static_assert(SIGSTKFLT == 16 && kSignals.size() == SIGSYS, "the numbers of x86-64 and aarch64");

}  // namespace

ExitStatus ExitStatus::from_siginfo(const siginfo_t& info) {
  switch (info.si_code) {
    case CLD_EXITED: return exited(info.si_status);
    case CLD_KILLED: return signaled(info.si_status);
    case CLD_DUMPED: return signaled(info.si_status, true);
    default: return {};
  }
}

int ExitStatus::exit_code() const {
  switch (kind) {
    case Kind::kExited: return number;
    case Kind::kSignaled: return 128 + number;
    case Kind::kUnknown: break;
  }
  return 255;
}

std::string ExitStatus::text() const {
  switch (kind) {
    case Kind::kExited: return "exited " + std::to_string(number);
    case Kind::kSignaled: return "killed by " + signal_name(number) + (core_dumped ? ", core dumped" : "");
    case Kind::kUnknown: break;
  }
  return "ended, exit status unknown";
}

std::string signal_name(int signal) {
  if (signal >= 1 && signal <= SIGSYS) return kSignals[static_cast<std::size_t>(signal) - 1];
  if (signal == SIGRTMIN) return "SIGRTMIN";
  if (signal > SIGRTMIN && signal <= SIGRTMAX) return "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
  return "signal " + std::to_string(signal);
}

}  // namespace ddp
