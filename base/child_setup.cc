#include "base/child_setup.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace ddp {
namespace {

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
  // Closes all unnamed descriptors at exec, even those opened without the flag. Kernels before 5.11 lack the
  // call; there only O_CLOEXEC at opening protects.
  syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
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

// An error is ignored: the group is only a safety net below the other ones. Runs among the first steps, so
// that nothing of the program escapes the group.
void enter_cgroup(const ChildPlan& plan) {
  if (plan.cgroup_procs < 0) return;
  [[maybe_unused]] const ssize_t written = write(plan.cgroup_procs, "0", 1);
}

}  // namespace

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
  sigprocmask(SIG_SETMASK, &plan.mask, nullptr);
  execve(plan.path, plan.argv, plan.envp);
  give_up(plan, ChildStep::kExec, errno);
}

}  // namespace ddp
