#include "base/exit_status.h"

#include <string.h>

namespace ddp {

ExitStatus ExitStatus::from_siginfo(const siginfo_t& info) {
  switch (info.si_code) {
    case CLD_EXITED:
      return exited(info.si_status);
    case CLD_KILLED:
      return signaled(info.si_status);
    case CLD_DUMPED:
      return signaled(info.si_status, true);
    default:
      return {};
  }
}

int ExitStatus::exit_code() const {
  switch (kind) {
    case Kind::kExited:
      return number;
    case Kind::kSignaled:
      return 128 + number;
    case Kind::kUnknown:
      break;
  }
  return 255;
}

std::string ExitStatus::text() const {
  switch (kind) {
    case Kind::kExited:
      return "exited " + std::to_string(number);
    case Kind::kSignaled:
      return "killed by " + signal_name(number) + (core_dumped ? ", core dumped" : "");
    case Kind::kUnknown:
      break;
  }
  return "ended, exit status unknown";
}

std::string signal_name(int signal) {
  if (const char* name = sigabbrev_np(signal)) return std::string("SIG") + name;
  if (signal == SIGRTMIN) return "SIGRTMIN";
  if (signal > SIGRTMIN && signal <= SIGRTMAX) return "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
  return "signal " + std::to_string(signal);
}

}  // namespace ddp
