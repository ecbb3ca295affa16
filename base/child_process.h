#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/exit_status.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp {

/// A descriptor of ours that the child gets under the number `as`.
struct InheritedFd {
  int fd = -1;
  int as = -1;
};

inline constexpr int kDevNull = -1;

/// What to start. The child gets exactly the descriptors named here: all others are closed at exec, also
/// those that somebody forgot to open close-on-exec. All signals have their default action in it, and none is
/// blocked.
struct ChildSpec {
  std::string path;               ///< the file to execute, as find_program gave it; relative: seen from `cwd`
  std::vector<std::string> argv;  ///< argv[0] included
  std::vector<std::string> env;   ///< the whole environment as NAME=value; nothing is inherited
  std::string cwd;                ///< empty: ours

  int in = kDevNull;  ///< descriptors of ours, borrowed until spawn returns; to share our own pass 0, 1, 2
  int out = kDevNull;
  int err = kDevNull;
  std::vector<InheritedFd> inherit;  ///< further descriptors, borrowed until spawn returns

  /// A control group for the child and all it starts; a kernel that refuses starts it outside, which is no
  /// error. `cgroup`: the group's directory; into it the child is born, at no cost (version 2, Linux 5.7).
  /// `cgroup_procs`: its cgroup.procs, open for writing, by which it enters otherwise, in 5 to 20 ms.
  /// Borrowed; -1: none.
  int cgroup = -1;
  int cgroup_procs = -1;

  bool new_session =
      true;  ///< setsid: the child leads a session and a process group of its own, with no terminal
  int death_signal =
      0;  ///< sent to the child when the THREAD that called spawn ends; 0: none. Lost at setuid exec
  pid_t tracer =
      0;  ///< may attach a debugger to it, and so may its children (Yama); 0: nobody more than usual
  std::optional<rlim_t>
      nofile_soft;  ///< soft RLIMIT_NOFILE of the child; unset: what we had before raise_nofile
  std::optional<sigset_t> signal_mask;  ///< what the child starts with blocked; unset: nothing
};

/// One child of ours. Passive: it owns the pid and the pidfd; waiting for the pidfd to become readable (= it
/// has ended) is the business of whoever has the loop. Destroying one that still lives kills its process
/// group and reaps it. Not thread-safe. No other code of the process may reap this pid (no waitpid(-1), no
/// ignored SIGCHLD).
class ChildProcess {
 public:
  ChildProcess() = default;  ///< empty
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  /// Kills the group (or the process, when it leads none) with SIGKILL and reaps it. Waits up to one second
  /// for the end; a process that the kernel holds longer (dead NFS) is given up and stays a zombie until we
  /// end.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  ///< borrowed; readable once the child has ended
  explicit operator bool() const { return pid_ > 0; }
  bool running() const { return pid_ > 0 && !status_; }  ///< not yet reaped

  /// Looks whether it has ended, without reaping: the pid and the group id stay taken, so send_group_signal
  /// still reaches what the child left in its group. Never blocks.
  std::optional<ExitStatus> peek() const;

  /// Reaps it when it has ended; afterwards returns the same status for ever. Never blocks.
  std::optional<ExitStatus> try_wait();

  /// To this very process, never to another one that got its number. Error kSystem (ESRCH) when it has been
  /// reaped.
  Result<> send_signal(int signal) const;

  /// To its whole process group; needs `new_session`. Error kSystem (ESRCH) when the leader has been reaped,
  /// since its number may then belong to somebody else.
  Result<> send_group_signal(int signal) const;

  /// Lets go of it without killing: nobody reaps it until we end.
  void abandon();

 private:
  friend Result<ChildProcess> spawn(const ChildSpec& spec);
  void destroy();

  pid_t pid_ = -1;
  bool leads_group_ = false;
  UniqueFd pidfd_;
  std::optional<ExitStatus> status_;
};

/// Raises our soft RLIMIT_NOFILE to the hard one, for a process that holds many pipes and links. Children
/// started by `spawn` get the limit that we had: programs that close every possible descriptor, or use
/// select(), count on a low one. Call it once, before threads. Returns the limit from now on.
rlim_t raise_nofile();

/// The soft RLIMIT_NOFILE that children get from us unless `nofile_soft` says otherwise.
rlim_t children_nofile();

/// Starts a program and returns when it has been executed. Costs no copy of our memory, however large we are
/// (not fork). Blocks while the kernel opens the working directory and the program, so as long as a dead
/// network disk holds it. Error: kExec, the program could not be executed (sys: ENOENT, EACCES, …; shells say
/// 127 and 126); kRefused, the working directory could not be entered; kSystem, anything else. The text names
/// the file and the reason.
Result<ChildProcess> spawn(const ChildSpec& spec);

}  // namespace ddp
