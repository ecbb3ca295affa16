#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <cstddef>

namespace ddp {

/// The steps between the birth of a child and its program, in their order.
enum class ChildStep : int { kNone, kSession, kDeathSignal, kDescriptors, kLimit, kChdir, kExec };

struct FdMove {
  int from;
  int to;
};

/// Everything the child side needs, made ready by the parent, since the child may allocate nothing. The
/// memory is shared with the parent (or a copy of it, after fork). Pointers are borrowed.
struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* envp;
  const char* cwd;  ///< null: stay
  FdMove* moves;    ///< `to` is different in each; the child changes `from`
  std::size_t move_count;
  int cgroup_procs;  ///< cgroup.procs of the control group to enter, open for writing; -1: stay
  bool new_session;
  int death_signal;      ///< 0: none
  pid_t tracer;          ///< who may attach a debugger, with its children; 0: as the system has it
  pid_t parent;          ///< who must still be the parent once the death signal is asked for
  const rlimit* nofile;  ///< null: keep
  sigset_t mask;
  int report_fd;  ///< where to write the failure; -1: the memory is shared, `failure` is enough
  struct {
    ChildStep step;
    int err;
  } failure;  ///< step is kNone as long as nothing failed
};

/// Runs in the new process, all signals blocked: sets it up and becomes the program, or notes the failure and
/// ends. Makes only system calls that are safe there (no allocation, no lock, no stdio).
[[noreturn]] void run_child(ChildPlan& plan);

}  // namespace ddp
