#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/exit_status.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp {

/// A descriptor of this process that the child gets under the number `as`.
struct InheritedFd {
  int fd = -1;
  int as = -1;
};

inline constexpr int kDevNull = -1;

/// Describes the program to start. The child gets exactly the descriptors named here. All others are closed
/// at exec, even if they were not opened close-on-exec. In the child, all signals have their default action
/// and none is blocked.
struct ChildSpec {
  std::string path;               ///< the file to execute, as find_program returned it; relative to `cwd`
  std::vector<std::string> argv;  ///< argv[0] included
  std::vector<std::string> env;   ///< the whole environment as NAME=value; nothing is inherited
  std::string cwd;                ///< empty: the cwd of this process

  int in = kDevNull;  ///< borrowed until spawn returns; 0, 1 or 2 share this process's own
  int out = kDevNull;
  int err = kDevNull;
  std::vector<InheritedFd> inherit;  ///< further descriptors, borrowed until spawn returns

  /// Control group for the child and its descendants; -1: none. If the kernel refuses, the child starts
  /// outside it, without an error. `cgroup` is the group's directory: the child starts in it at no cost
  /// (version 2, Linux 5.7). `cgroup_procs` is its cgroup.procs, open for writing: the fallback, which takes
  /// 5 to 20 ms. Both are borrowed.
  int cgroup = -1;
  int cgroup_procs = -1;

  bool new_session = true;  ///< setsid: the child leads its own session and process group, without a terminal
  int death_signal =
      0;  ///< sent to the child when the THREAD that called spawn ends; 0: none. Lost at setuid exec
  pid_t tracer = 0;  ///< pid that may attach a debugger, as may its children (Yama); 0: the system's rule
  std::optional<rlim_t>
      nofile_soft;  ///< soft RLIMIT_NOFILE of the child; unset: the limit before raise_nofile
  std::optional<sigset_t> signal_mask;  ///< signals that the child starts with blocked; unset: none
};

/// One child of this process. It owns the pid; the caller waits until end_fd() is readable, which means that
/// the child has ended. The number stays the child's until it is reaped here. The destructor kills the
/// process group of a running child and reaps the child. Not thread-safe. No other code of the process may
/// reap this pid (no waitpid(-1), no ignored SIGCHLD).
class ChildProcess {
 public:
  ChildProcess() = default;  ///< empty
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  /// Kills the group (or the process, when it leads none) with SIGKILL and reaps the child. Waits up to one
  /// second for its end. A process that the kernel holds longer (dead NFS) stays a zombie until this process
  /// ends.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  /// Borrowed; readable once the child has ended. A pidfd, or a pipe where the kernel has none.
  int end_fd() const { return end_.get(); }
  explicit operator bool() const { return pid_ > 0; }
  bool running() const { return pid_ > 0 && !status_; }  ///< not yet reaped

  /// Returns the status if the child has ended, without reaping. The pid and the group id stay taken, so
  /// send_group_signal still reaches other processes of the group. Never blocks.
  std::optional<ExitStatus> peek() const;

  /// Reaps the child if it has ended; afterwards always returns the same status. Never blocks.
  std::optional<ExitStatus> try_wait();

  /// Signals this process, never another one that reuses its pid. Error: kSystem (ESRCH) once it is reaped.
  Result<> send_signal(int signal) const;

  /// Signals the whole process group; needs `new_session`. Error: kSystem (ESRCH) once the leader is reaped,
  /// since its number may then belong to another process.
  Result<> send_group_signal(int signal) const;

  /// Gives up the child without killing it: it is not reaped until this process ends.
  void abandon();

 private:
  friend Result<ChildProcess> spawn(const ChildSpec& spec);
  void destroy();

  pid_t pid_ = -1;
  bool leads_group_ = false;
  UniqueFd end_;
  std::optional<ExitStatus> status_;
};

/// Returns this process's environment as NAME=value.
std::vector<std::string> own_environment();

/// Returns the error of a call that makes a process or a thread, with advice where a limit (EAGAIN) or a
/// security profile (EPERM) refused it.
Error limit_error(int err, std::string_view what);

/// Raises the soft RLIMIT_NOFILE of this process to the hard one, for many pipes and links. Children started
/// by `spawn` get the previous limit: programs that close every possible descriptor, or use select(), need a
/// low one. Also makes room in the kernel's table for 4096 descriptors, which with threads takes a pause each
/// time that it grows. Call it once, before threads start. Returns the new limit.
rlim_t raise_nofile();

/// Returns the soft RLIMIT_NOFILE that children get unless `nofile_soft` says otherwise.
rlim_t children_nofile();

/// Starts a program and returns when it has been executed. Memory is not copied (no fork), so a large process
/// pays nothing. Blocks while the kernel opens the working directory and the program, which may take long on
/// a dead network disk. Errors: kExec, the program could not be executed (sys: ENOENT, EACCES, …; shells: 127
/// and 126); kRefused, the working directory could not be entered; kSystem, anything else. The text names the
/// file and the reason.
Result<ChildProcess> spawn(const ChildSpec& spec);

/// Starts many children in parallel, away from the caller's thread: `spawn` waits until the kernel has
/// executed the program, which a network disk may delay for minutes. A child's death signal follows the
/// thread that created the child. So the threads live as long as the pool, and the pool must outlive its
/// children.
class SpawnPool {
 public:
  /// One result for each spec, in order.
  using SpawnDone = std::function<void(std::vector<Result<ChildProcess>>)>;

  /// Starts `threads` threads, or as many as the limit of processes allows. With 0, the caller's thread
  /// starts all children and waits for them (sanitizers do not support fork beside threads).
  explicit SpawnPool(unsigned threads);
  /// Waits until children that are being started have started.
  ~SpawnPool();
  SpawnPool(const SpawnPool&) = delete;
  SpawnPool& operator=(const SpawnPool&) = delete;

  /// Starts the children and calls `done` on a thread of the pool. Do not call it again before that. Errors
  /// as in `spawn`, and kCancelled. Everything that a spec borrows is used until `done` is called.
  void spawn_all(std::vector<ChildSpec> specs, SpawnDone done);
  /// Children of the current call that no thread has begun to start are not started: kCancelled.
  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<ChildSpec> specs_;
  std::vector<std::optional<Result<ChildProcess>>> results_;
  SpawnDone done_;
  std::size_t next_ = 0;
  std::size_t finished_ = 0;
  bool cancelled_ = false;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

/// Returns how many threads are useful for `children`: a few, or none in a build where spawn forks.
unsigned spawn_threads(std::size_t children);

/// Closes the descriptors from `first` to `last`, also where close_range(2) is missing (before Linux 5.9).
/// Async-signal-safe.
void close_descriptors(unsigned first, unsigned last);

/// Returns whether the kernel has pidfds and lets this process use them: Linux 5.3 and later, unless a
/// container's filter refuses them. Only a pidfd can be given to poll(): it is readable when the process
/// ends.
bool has_pidfds();

// ---- the child's side, which child_setup.cc has

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

}  // namespace ddp
