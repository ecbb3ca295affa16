// How a child is made (docs/decisions/0002-one-way-to-start-a-child.md), ChildProcess, and SpawnPool. The
// code that runs in the child is in child_setup.cc.
#include "base/child_process.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <future>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/program.h"

// The shadow memory of a sanitizer does not support a second process in the same memory, so there the child
// gets a copy.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DDP_SPAWN_BY_FORK 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define DDP_SPAWN_BY_FORK 1
#endif
#endif
#ifndef DDP_SPAWN_BY_FORK
#define DDP_SPAWN_BY_FORK 0
#endif

namespace ddp {
namespace {

/// Enough for 512 workers; the table takes 32 KiB.
constexpr rlim_t kManyDescriptors = 4096;
/// Minimum number of children for which several threads are used.
constexpr std::size_t kFewestForThreads = 6;
/// Set once by raise_nofile, before threads start.
std::optional<rlim_t> nofile_before_raise;

/// Blocks every signal of this thread, including the two that libc reserves. The child shares this memory, so
/// it must not run a handler.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    std::uint64_t all = ~std::uint64_t{0};
    // The system call itself: libc's function leaves its two reserved signals unblocked.
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before_, sizeof all);
  }
  ~AllSignalsBlocked() { syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, sizeof before_); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  std::uint64_t before_ = 0;
};

std::optional<ExitStatus> wait_for(pid_t pid, int flags) {
  siginfo_t info = {};
  int rc;
  do {
    rc = waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | flags);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) return ExitStatus{};  // ECHILD: other code has reaped it
  if (info.si_pid == 0) return std::nullopt;
  return ExitStatus::from_siginfo(info);
}

struct SpawnedProcess {
  pid_t pid;
  UniqueFd pidfd;  ///< empty where the kernel has none
};

/// Tells the end of a child where the kernel has no pidfds: a thread waits for it and writes to a pipe. The
/// thread is made before the child, so that no child runs without it.
class EndWatcher {
 public:
  EndWatcher() = default;
  EndWatcher(const EndWatcher&) = delete;
  EndWatcher& operator=(const EndWatcher&) = delete;
  /// Ends the thread unless it watches a child.
  ~EndWatcher() { watch(0); }

  Result<> prepare() {
    auto [read_end, write_end] = DDP_TRY(make_pipe("pipe to watch a new process"));
    read_end_ = std::move(read_end);
    const SignalsBlocked mask;
    try {
      std::thread(wait_for_end, pid_.get_future(), std::move(write_end)).detach();
    } catch (const std::system_error& error) {
      return limit_error(error.code().value(), "a thread to watch a new process");
    }
    return {};
  }

  /// Returns what is readable once the child `pid` has ended.
  UniqueFd watch(pid_t pid) {
    if (read_end_) pid_.set_value(pid);
    return std::move(read_end_);
  }

 private:
  static void wait_for_end(std::future<pid_t> child, UniqueFd write_end) {
    const pid_t pid = child.get();
    siginfo_t info;
    // Also ends when another thread has reaped the child.
    while (pid > 0 && waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 &&
           errno == EINTR) {
    }
    [[maybe_unused]] const ssize_t written = write(write_end.get(), "", 1);
  }

  std::promise<pid_t> pid_;
  UniqueFd read_end_;
};

#if DDP_SPAWN_BY_FORK

Result<SpawnedProcess> spawn_child(ChildPlan& plan, int) {
  auto [read_end, write_end] = DDP_TRY(make_pipe("pipe for a new process"));
  plan.report_fd = write_end.get();
  const pid_t pid = fork();
  if (pid == 0) run_child(plan);
  if (pid < 0) return system_error(errno, "fork");
  write_end.reset();
  // End of file without data means that exec closed the pipe.
  while (read(read_end.get(), &plan.failure, sizeof plan.failure) < 0 && errno == EINTR) {
  }
  return SpawnedProcess{pid,
                        UniqueFd(has_pidfds() ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0U)) : -1)};
}

#else

int enter_child(void* plan) {
  run_child(*static_cast<ChildPlan*>(plan));
}

/// Like clone(), but with a control group, which libc does not support; so the switch to the child's stack is
/// written here. Returns -1 and sets errno; ENOSYS where this is not implemented.
pid_t clone_into_cgroup(ChildPlan& plan, char* stack, std::size_t size, int& pidfd, int cgroup) {
#if defined(__x86_64__) && defined(CLONE_INTO_CGROUP) && defined(SYS_clone3)
  clone_args args = {};
  args.flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_INTO_CGROUP;
  args.exit_signal = SIGCHLD;
  args.pidfd = reinterpret_cast<std::uintptr_t>(&pidfd);
  args.stack = reinterpret_cast<std::uintptr_t>(stack);
  args.stack_size = size;
  args.cgroup = static_cast<std::uint64_t>(cgroup);
  long result;
  // The child must not return, since the frame belongs to the parent. Frame pointer 0 ends a debugger's stack
  // walk. It is cleared last, because an operand may be in that register.
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "mov %[plan], %%rdi\n\t"
      "mov %[enter], %%rax\n\t"
      "xor %%ebp, %%ebp\n\t"
      "call *%%rax\n\t"
      "hlt\n"
      "1:"
      : "=a"(result)
      : "a"(SYS_clone3), "D"(&args), "S"(sizeof args), [enter] "r"(&enter_child), [plan] "r"(&plan)
      : "rcx", "r11", "cc", "memory");
  if (result >= 0) return static_cast<pid_t>(result);
  errno = static_cast<int>(-result);
#else
  (void)plan, (void)stack, (void)size, (void)pidfd, (void)cgroup;
  errno = ENOSYS;
#endif
  return -1;
}

Result<SpawnedProcess> spawn_child(ChildPlan& plan, int cgroup) {
  // CLONE_VFORK suspends this thread until the child has executed or ended, so the child may use this stack.
  alignas(64) char stack[32 * 1024];
  int pidfd = -1;
  const int flags = CLONE_VM | CLONE_VFORK | SIGCHLD | (has_pidfds() ? CLONE_PIDFD : 0);
  if (cgroup >= 0 && has_pidfds()) {
    // A child that starts inside the group need not enter it.
    const int procs = std::exchange(plan.cgroup_procs, -1);
    const pid_t pid = clone_into_cgroup(plan, stack, sizeof stack, pidfd, cgroup);
    if (pid > 0) return SpawnedProcess{pid, UniqueFd(pidfd)};
    // An old kernel, a container's filter or the group refused: use plain clone.
    plan.cgroup_procs = procs;
  }
  const pid_t pid = clone(enter_child, stack + sizeof stack, flags, &plan, &pidfd);
  if (pid < 0) {
    return limit_error(errno, "clone");
  }
  return SpawnedProcess{pid, UniqueFd(pidfd)};
}

#endif

std::unique_ptr<char* []> pointers(const std::vector<std::string>& strings) {
  auto array = std::make_unique<char*[]>(strings.size() + 1);
  for (std::size_t i = 0; i < strings.size(); ++i)
    array[i] = const_cast<char*>(strings[i].c_str());
  return array;
}

Result<std::vector<FdMove>> plan_moves(const ChildSpec& spec, UniqueFd& dev_null) {
  std::vector<FdMove> moves{{spec.in, 0}, {spec.out, 1}, {spec.err, 2}};
  for (FdMove& move : moves) {
    if (move.from != kDevNull) continue;
    if (!dev_null) dev_null.reset(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!dev_null) return system_error(errno, "open /dev/null");
    move.from = dev_null.get();
  }
  for (const InheritedFd& fd : spec.inherit)
    moves.push_back({fd.fd, fd.as});
  return moves;
}

const char* step_text(ChildStep step) {
  switch (step) {
    case ChildStep::kSession: return "start a session for ";
    case ChildStep::kDeathSignal: return "request a death signal for ";
    case ChildStep::kDescriptors: return "pass descriptors to ";
    case ChildStep::kLimit: return "set the limit of open files of ";
    case ChildStep::kChdir:
    case ChildStep::kExec:
    case ChildStep::kNone: break;
  }
  return "start ";
}

Error failure_of(const ChildSpec& spec, const ChildPlan& plan) {
  switch (plan.failure.step) {
    case ChildStep::kExec: return exec_error(plan.failure.err, spec.path, spec.cwd);
    case ChildStep::kChdir:
      return system_error(plan.failure.err, "enter working directory " + spec.cwd, ErrorCode::kRefused);
    default: return system_error(plan.failure.err, step_text(plan.failure.step) + spec.path);
  }
}

}  // namespace

Error limit_error(int err, std::string_view what) {
  Error error = system_error(err, std::string(what));
  if (err == EAGAIN) error.text += "; the limit of processes is reached (ulimit -u)";
  if (err == EPERM)
    error.text +=
        "; a container's security profile refuses it (clone3): update the container engine, or start the "
        "container with --security-opt seccomp=unconfined";
  return error;
}

rlim_t raise_nofile() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return RLIM_INFINITY;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (before != limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) == 0) nofile_before_raise = before;
  // The kernel's table of descriptors doubles as they are opened. With threads each step takes 10 ms, for the
  // kernel waits until no CPU can read the old table. The table never shrinks.
  const rlim_t allowed = nofile_before_raise ? limit.rlim_max : before;
  const UniqueFd highest(
      fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, static_cast<int>(std::min(allowed, kManyDescriptors) - 1)));
  return allowed;
}

rlim_t children_nofile() {
  if (nofile_before_raise) return *nofile_before_raise;
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    env.emplace_back(*entry);
  return env;
}

Result<ChildProcess> spawn(const ChildSpec& spec) {
  UniqueFd dev_null;
  auto moves = DDP_TRY(within("start " + spec.path, plan_moves(spec, dev_null)));
  const auto argv = pointers(spec.argv);
  const auto envp = pointers(spec.env);
  ChildPlan plan = {};
  plan.path = spec.path.c_str();
  plan.argv = argv.get();
  plan.envp = envp.get();
  plan.cwd = spec.cwd.empty() ? nullptr : spec.cwd.c_str();
  plan.moves = moves.data();
  plan.move_count = moves.size();
  plan.cgroup_procs = spec.cgroup_procs;
  plan.new_session = spec.new_session;
  plan.death_signal = spec.death_signal;
  plan.tracer = spec.tracer;
  plan.parent = getpid();
  plan.report_fd = -1;
  rlimit nofile;
  const std::optional<rlim_t> soft = spec.nofile_soft ? spec.nofile_soft : nofile_before_raise;
  if (soft && getrlimit(RLIMIT_NOFILE, &nofile) == 0) {
    nofile.rlim_cur = std::min(*soft, nofile.rlim_max);
    plan.nofile = &nofile;
  }
  sigemptyset(&plan.mask);
  if (spec.signal_mask) plan.mask = *spec.signal_mask;

  EndWatcher watcher;
  if (!has_pidfds()) DDP_TRY(within("start " + spec.path, watcher.prepare()));
  const auto born = [&plan, &spec] {
    AllSignalsBlocked quiet;
    return spawn_child(plan, spec.cgroup);
  };
  auto spawned = DDP_TRY(within("start " + spec.path, born()));
  ChildProcess child;
  child.pid_ = spawned.pid;
  child.end_ = has_pidfds() ? std::move(spawned.pidfd) : watcher.watch(child.pid_);
  child.leads_group_ = spec.new_session;
  if (plan.failure.step == ChildStep::kNone) return child;
  // The child has ended itself in give_up, so this wait is short.
  child.status_ = wait_for(child.pid_, 0);
  return failure_of(spec, plan);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      leads_group_(other.leads_group_),
      end_(std::move(other.end_)),
      status_(std::exchange(other.status_, std::nullopt)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  destroy();
  pid_ = std::exchange(other.pid_, -1);
  leads_group_ = other.leads_group_;
  end_ = std::move(other.end_);
  status_ = std::exchange(other.status_, std::nullopt);
  return *this;
}

ChildProcess::~ChildProcess() {
  destroy();
}

void ChildProcess::destroy() {
  if (!running()) return;
  // Signal before reaping, while the group id cannot belong to another process.
  if (leads_group_) {
    (void)send_group_signal(SIGKILL);
  } else {
    (void)send_signal(SIGKILL);
  }
  pollfd ended{end_.get(), POLLIN, 0};
  // A process in state D does not die of SIGKILL. After a second it is left to whoever adopts it.
  poll(&ended, 1, 1000);
  (void)try_wait();
  abandon();
}

std::optional<ExitStatus> ChildProcess::peek() const {
  if (status_ || pid_ <= 0) return status_;
  return wait_for(pid_, WNOHANG | WNOWAIT);
}

std::optional<ExitStatus> ChildProcess::try_wait() {
  if (!status_ && pid_ > 0) status_ = wait_for(pid_, WNOHANG);
  return status_;
}

Result<> ChildProcess::send_signal(int signal) const {
  if (!running()) return system_error(ESRCH, "signal a process that has ended");
  if (kill(pid_, signal) != 0) {
    return system_error(errno, "send " + signal_name(signal) + " to process " + std::to_string(pid_));
  }
  return {};
}

Result<> ChildProcess::send_group_signal(int signal) const {
  if (!running()) return system_error(ESRCH, "signal the group of a process that has ended");
  if (kill(-pid_, signal) != 0) {
    return system_error(errno, "send " + signal_name(signal) + " to process group " + std::to_string(pid_));
  }
  return {};
}

void ChildProcess::abandon() {
  pid_ = -1;
  end_.reset();
  status_.reset();
}

SpawnPool::SpawnPool(unsigned threads) {
  try {
    for (unsigned i = 0; i < threads; ++i)
      threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // The limit of processes is reached. The threads that run do the work, or the caller's thread.
  }
}

SpawnPool::~SpawnPool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    wake_.notify_all();
  }
  for (std::thread& thread : threads_)
    thread.join();
}

void SpawnPool::spawn_all(std::vector<ChildSpec> specs, SpawnDone done) {
  if (threads_.empty() || specs.empty()) {
    std::vector<Result<ChildProcess>> results;
    for (const ChildSpec& spec : specs)
      results.push_back(spawn(spec));
    return done(std::move(results));
  }
  const std::lock_guard lock(mutex_);
  specs_ = std::move(specs);
  done_ = std::move(done);
  results_.clear();
  results_.resize(specs_.size());
  next_ = 0;
  finished_ = 0;
  cancelled_ = false;
  wake_.notify_all();
}

void SpawnPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || next_ < specs_.size(); });
    if (ending_) return;
    const std::size_t mine = next_++;
    const ChildSpec& spec = specs_[mine];
    if (cancelled_) {
      results_[mine].emplace(Error{ErrorCode::kCancelled, "start " + spec.path + ": cancelled", 0});
    } else {
      lock.unlock();
      Result<ChildProcess> result = spawn(spec);
      lock.lock();
      results_[mine].emplace(std::move(result));
    }
    if (++finished_ < specs_.size()) continue;
    std::vector<Result<ChildProcess>> results;
    for (auto& result : results_)
      results.push_back(std::move(*result));
    // The last thread to finish calls it without the lock, since it may give the pool its next list.
    const SpawnDone done = std::exchange(done_, nullptr);
    specs_.clear();
    next_ = 0;
    lock.unlock();
    done(std::move(results));
    lock.lock();
  }
}

unsigned spawn_threads(std::size_t children) {
  // Builds that fork start one child after the other (decision 0002).
  if (DDP_SPAWN_BY_FORK) return 0;
  return children < kFewestForThreads ? 1u : std::clamp(std::thread::hardware_concurrency() + 2, 2u, 8u);
}

}  // namespace ddp
