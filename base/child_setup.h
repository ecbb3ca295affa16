#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <cstddef>

namespace ddp {

/// Steps between the creation of a child and exec, in order.
enum class ChildStep : int { kNone, kSession, kDeathSignal, kDescriptors, kLimit, kChdir, kExec };

struct FdMove {
  int from;
  int to;
};

/// Everything that the child side needs. The parent prepares it, since the child must not allocate. The
/// memory is shared with the parent (or a copy of it, after fork). Pointers are borrowed.
struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* envp;
  const char* cwd;  ///< null: stay
  FdMove* moves;    ///< each `to` is different; the child changes `from`
  std::size_t move_count;
  int cgroup_procs;  ///< cgroup.procs of the control group to enter, open for writing; -1: stay
  bool new_session;
  int death_signal;      ///< 0: none
  pid_t tracer;          ///< pid that may attach a debugger, as may its children; 0: the system's rule
  pid_t parent;          ///< pid that must still be the parent after the request for a death signal
  const rlimit* nofile;  ///< null: keep
  sigset_t mask;
  int report_fd;  ///< pipe that takes `failure`; -1: not needed, the memory is shared
  struct {
    ChildStep step;
    int err;
  } failure;  ///< step is kNone unless a step failed
};

/// Runs in the new process, with all signals blocked. Sets the process up and executes the program, or stores
/// the failure and exits. Uses only async-signal-safe system calls (no allocation, no lock, no stdio).
[[noreturn]] void run_child(ChildPlan& plan);

/// Closes the descriptors from `first` to `last`, also where close_range(2) is missing (before Linux 5.9).
/// Async-signal-safe.
void close_descriptors(unsigned first, unsigned last);

/// Returns whether the kernel has pidfds and lets this process use them: Linux 5.3 and later, unless a
/// container's filter refuses them. Only a pidfd can be given to poll(): it is readable when the process
/// ends.
bool has_pidfds();

}  // namespace ddp
