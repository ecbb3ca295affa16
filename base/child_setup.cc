// run_child() runs in a child that shares its parent's memory while the parent waits: it makes system calls
// only, allocates nothing and takes no lock. close_descriptors() and has_pidfds() have other users, too.
#include "base/child_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

#include "base/unique_fd.h"

namespace ddp {
namespace {

/// The kernel's entry of a directory, which readdir() would copy into allocated memory.
struct Entry {
  ino64_t inode;
  off64_t offset;
  unsigned short size;
  unsigned char type;
  char name[1];
};

/// Returns the number in a name of /proc/self/fd, or -1 for "." and "..".
long number_of(const char* name) {
  long number = 0;
  for (; *name != 0; ++name) {
    if (*name < '0' || *name > '9') return -1;
    number = number * 10 + (*name - '0');
  }
  return number;
}

/// Applies `flags` as close_range(2) does, by the list of open descriptors.
void visit_descriptors(unsigned first, unsigned last, unsigned flags) {
  const int list = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list < 0) return;
  alignas(Entry) char buffer[4096];
  long size;
  while ((size = syscall(SYS_getdents64, list, buffer, sizeof buffer)) > 0) {
    for (long at = 0; at < size;) {
      const char* const entry = buffer + at;
      const long fd = number_of(entry + offsetof(Entry, name));
      unsigned short length;
      std::memcpy(&length, entry + offsetof(Entry, size), sizeof length);
      at += length;
      if (fd < 0 || fd == list || fd < static_cast<long>(first) || fd > static_cast<long>(last)) continue;
      if (flags == 0) {
        close(static_cast<int>(fd));
      } else {
        fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC);
      }
    }
  }
  close(list);
}

void apply(unsigned first, unsigned last, unsigned flags) {
  // close_range is Linux 5.9, its CLOSE_RANGE_CLOEXEC 5.11 (close_range(2)).
  if (first > last || syscall(SYS_close_range, first, last, flags) == 0) return;
  visit_descriptors(first, last, flags);
}

/// Returns whether a system call answers arguments that are always wrong as the kernel does, not as a filter.
bool is_allowed(long number) {
  return syscall(number, -1L, 0L, 0L, 0L) == 0 || (errno != ENOSYS && errno != EPERM && errno != EACCES);
}

[[noreturn]] void give_up(ChildPlan& plan, ChildStep step, int err) {
  plan.failure.step = step;
  plan.failure.err = err;
  if (plan.report_fd >= 0) {
    // The size is far below PIPE_BUF, so the write is atomic. An error here cannot be reported anywhere.
    const auto failure = plan.failure;
    [[maybe_unused]] const ssize_t written = write(plan.report_fd, &failure, sizeof failure);
  }
  _exit(127);
}

void check(ChildPlan& plan, ChildStep step, bool ok) {
  if (!ok) give_up(plan, step, errno);
}

// Handlers would run in the parent's memory, and ignored signals would stay ignored in the program.
void default_signals() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal)
    sigaction(signal, &action, nullptr);
}

void ask_for_death_signal(ChildPlan& plan) {
  if (plan.death_signal == 0) return;
  check(plan, ChildStep::kDeathSignal, prctl(PR_SET_PDEATHSIG, plan.death_signal, 0, 0, 0) == 0);
  // A parent that ended before the request sends no signal, so check it afterwards.
  if (getppid() != plan.parent) _exit(127);
}

bool is_target(const ChildPlan& plan, int fd) {
  for (std::size_t i = 0; i < plan.move_count; ++i) {
    if (plan.moves[i].to == fd) return true;
  }
  return false;
}

void move_descriptors(ChildPlan& plan) {
  // Closes all unnamed descriptors at exec, even those opened without the flag.
  apply(3, ~0U, CLOSE_RANGE_CLOEXEC);
  int above = 3;
  for (std::size_t i = 0; i < plan.move_count; ++i) {
    if (plan.moves[i].to >= above) above = plan.moves[i].to + 1;
  }
  // A source that is also a target would be overwritten, so move it to a free number first.
  for (std::size_t i = 0; i < plan.move_count; ++i) {
    FdMove& move = plan.moves[i];
    if (move.from == move.to || !is_target(plan, move.from)) continue;
    move.from = fcntl(move.from, F_DUPFD_CLOEXEC, above);
    check(plan, ChildStep::kDescriptors, move.from >= 0);
  }
  for (std::size_t i = 0; i < plan.move_count; ++i) {
    const FdMove& move = plan.moves[i];
    // dup2 onto the same number would leave close-on-exec set.
    const bool ok = move.from == move.to ? fcntl(move.to, F_SETFD, 0) == 0 : dup2(move.from, move.to) >= 0;
    check(plan, ChildStep::kDescriptors, ok);
  }
}

#if defined(__aarch64__)
int end_at_once(void*) {
  return 0;
}
#endif

/// Returns whether a child can be made with a pidfd. QEMU's user mode, which runs this architecture's agent
/// elsewhere, has the other calls but not that (EINVAL).
bool can_start_with_pidfd() {
#if defined(__aarch64__)
  alignas(64) char stack[16 * 1024];
  int pidfd = -1;
  // Without a signal at its end, so that the program's own waits do not see this child.
  const pid_t child =
      clone(end_at_once, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_PIDFD, nullptr, &pidfd);
  if (child < 0) return errno != EINVAL;
  close(pidfd);
  while (waitpid(child, nullptr, __WALL) < 0 && errno == EINTR) {
  }
#endif
  return true;
}

// An error is ignored: the group is only a safety net below the other ones. Runs among the first steps, so
// that nothing of the program escapes the group.
void enter_cgroup(const ChildPlan& plan) {
  if (plan.cgroup_procs < 0) return;
  [[maybe_unused]] const ssize_t written = write(plan.cgroup_procs, "0", 1);
}

}  // namespace

void close_descriptors(unsigned first, unsigned last) {
  apply(first, last, 0);
}

bool has_pidfds() {
  // The answer never changes, so threads may ask at the same time.
  static std::atomic<int> known{-1};
  int answer = known.load(std::memory_order_relaxed);
  if (answer < 0) {
    answer =
        is_allowed(SYS_pidfd_open) && is_allowed(SYS_pidfd_send_signal) && can_start_with_pidfd() ? 1 : 0;
    known.store(answer, std::memory_order_relaxed);
  }
  return answer == 1;
}

void run_child(ChildPlan& plan) {
  default_signals();
  enter_cgroup(plan);
  if (plan.new_session) check(plan, ChildStep::kSession, setsid() >= 0);
  ask_for_death_signal(plan);
  move_descriptors(plan);
  if (plan.nofile) check(plan, ChildStep::kLimit, setrlimit(RLIMIT_NOFILE, plan.nofile) == 0);
  if (plan.cwd) check(plan, ChildStep::kChdir, chdir(plan.cwd) == 0);
  // Fails where the Yama module does not restrict debuggers; the error is ignored.
  if (plan.tracer != 0) prctl(PR_SET_PTRACER, plan.tracer, 0, 0, 0);
  // Last before exec: from here on a signal may end the child, when all that it needs is in place.
  sigprocmask(SIG_SETMASK, &plan.mask, nullptr);
  execve(plan.path, plan.argv, plan.envp);
  give_up(plan, ChildStep::kExec, errno);
}

}  // namespace ddp
