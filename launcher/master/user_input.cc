// Who sent a signal; the process that a shell with job control knows (split_for_job_control), which never
// returns to its caller; and what a signal does when the job is over. Handlers make only async-signal-safe
// calls.

#include "launcher/master/user_input.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/files.h"
#include "base/result.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/keeper/process_table.h"

namespace ddp::launcher {
namespace {

/// Who sent the last signal of each number. The handlers write it.
struct SignalSender {
  /// 0: a process outside of this PID namespace; -1: the kernel, as for a terminal.
  std::atomic<pid_t> pid{-1};
  std::atomic<uid_t> uid{0};

  void set(const siginfo_t& info) {
    const bool from_process = info.si_code <= 0;  // kill, tgkill, sigqueue
    pid = from_process ? info.si_pid : -1;
    uid = from_process ? info.si_uid : 0;
  }
};
std::array<SignalSender, NSIG> senders;

void (*asios_handler)(int) = nullptr;

/// Asio's handler does not learn who has sent a signal.
void note_sender(int number, siginfo_t* info, void*) {
  senders[static_cast<std::size_t>(number)].set(*info);
  asios_handler(number);
}

void note_senders(int number) {
  struct sigaction action {};
  // SA_SIGINFO: the handler is already ours. As Asio's handler it would call itself for ever.
  if (::sigaction(number, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0) return;
  asios_handler = action.sa_handler;
  action.sa_flags |= SA_SIGINFO;
  action.sa_sigaction = note_sender;
  ::sigaction(number, &action, nullptr);
}

/// Returns which scheduler may have sent a SIGTERM to this process; empty: none is known.
std::string scheduler_text() {
  static constexpr std::pair<const char*, const char*> kJobIds[] = {
      {"SLURM_JOB_ID", "Slurm"},
      {"PBS_JOBID", "PBS"},
      {"LSB_JOBID", "LSF"},
      {"FLUX_JOB_ID", "Flux"},
      {"KUBERNETES_SERVICE_HOST", "Kubernetes"}};
  for (const auto& [variable, name] : kJobIds) {
    const char* const id = std::getenv(variable);
    if (id == nullptr || *id == '\0') continue;
    const bool has_id = std::string_view(name) != "Kubernetes";
    std::string text =
        std::string("probably the scheduler, ") + name + (has_id ? " job " + one_line(id) : "");
    const char* const end = std::getenv("SLURM_JOB_END_TIME");
    const auto limit = parse_number<std::time_t>(end == nullptr ? "" : end);
    return text + (limit && ::time(nullptr) >= *limit ? ", whose time limit is over" : "");
  }
  return "";
}

volatile std::sig_atomic_t settled_code = 0;
/// Set once, before `has_final_line`.
std::string final_line;
volatile std::sig_atomic_t has_final_line = 0;

/// Makes only async-signal-safe calls. It never waits, because stderr may have no reader.
void end_now(int) {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (has_final_line != 0 && ::poll(&room, 1, 0) == 1)
    (void)!::write(STDERR_FILENO, final_line.data(), final_line.size());
  ::_exit(settled_code);
}

sigset_t ending_signals() {
  sigset_t ending;
  ::sigemptyset(&ending);
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    ::sigaddset(&ending, number);
  return ending;
}

bool inherited_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void add_signals(asio::signal_set& set, std::initializer_list<int> numbers) {
  for (const int number : numbers) {
    if (inherited_ignored(number)) continue;
    set.add(number);
    note_senders(number);
  }
}

pid_t job_control_parent = 0;
bool has_stopped_parent = false;

/// How often the master got each signal, shared with the parent.
struct SeenSignals {
  std::array<std::atomic<unsigned>, NSIG> count{};
  std::array<SignalSender, NSIG> senders{};  ///< of those that the parent passes on
};
SeenSignals* seen_signals = nullptr;
/// A signal to the process group reaches the master within this time, too.
constexpr timespec kGroupTime{0, 100'000'000};

/// Returns whether a parent would continue this process after a stop. This needs a parent in the same
/// session, outside the process group, such as a shell with job control. Otherwise the group is orphaned
/// (setsid, `ssh -t HOST ddplaunch`, a container).
bool can_be_continued() {
  pid_t parent = ::getppid();
  while (parent > 0 && ::getpgid(parent) == ::getpgrp()) {
    const auto process = read_process(parent);
    parent = process ? process->parent : 0;
  }
  return parent > 0 && ::getsid(parent) == ::getsid(0);
}

/// Ends as the master did, without a second core file.
[[noreturn]] void end_like(const siginfo_t& master) {
  if (master.si_code == CLD_EXITED) ::_exit(master.si_status);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::signal(master.si_status, SIG_DFL);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
  ::raise(master.si_status);
  ::_exit(128 + master.si_status);
}

/// Stops this process, and returns when it continues. A SIGCONT that has come meanwhile is for both.
void stop_with(pid_t master) {
  sigset_t pending;
  ::sigpending(&pending);
  if (::sigismember(&pending, SIGCONT) == 0) ::raise(SIGSTOP);  // it would discard the SIGCONT
  ::kill(master, SIGCONT);
}

/// Passes a signal on that came to this process alone. The terminal, `kill %1` and `timeout` send theirs to
/// the group, and those that waited while this process was stopped have long reached the master.
void pass_on(pid_t master, const siginfo_t& signal, unsigned& counted) {
  const int number = signal.si_signo;
  const std::atomic<unsigned>& seen = seen_signals->count[static_cast<std::size_t>(number)];
  if (seen.load() == counted) ::nanosleep(&kGroupTime, nullptr);
  const unsigned now = seen.load();
  if (now == counted) {
    seen_signals->senders[static_cast<std::size_t>(number)].set(signal);
    ::kill(master, number);
  }
  counted = now + (now == counted ? 1 : 0);
}

[[noreturn]] void follow_master(pid_t master, const sigset_t& signals) {
  std::array<unsigned, NSIG> counted{};
  for (;;) {
    siginfo_t end{};
    while (::waitid(P_PID, static_cast<id_t>(master), &end, WEXITED | WSTOPPED | WNOHANG) == 0 &&
           end.si_pid != 0) {
      if (end.si_code != CLD_STOPPED) end_like(end);
      stop_with(master);
      end = {};
    }
    siginfo_t signal{};
    const int number = ::sigwaitinfo(&signals, &signal);
    if (number == SIGCONT)
      ::kill(master, SIGCONT);
    else if (number > 0 && number != SIGCHLD)
      pass_on(master, signal, counted[static_cast<std::size_t>(number)]);
  }
}

void split_for_job_control(const std::function<void()>& forget_secrets) {
  const UniqueFd terminal(::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!terminal || !can_be_continued()) return;
  void* const shared =
      ::mmap(nullptr, sizeof(SeenSignals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return;
  seen_signals = new (shared) SeenSignals;
  sigset_t signals, before;
  ::sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2})
    ::sigaddset(&signals, number);
  // An inherited SIG_IGN would reap the master before its status is read.
  ::signal(SIGCHLD, SIG_DFL);
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  const pid_t parent = ::getpid();
  const pid_t master = ::fork();
  if (master > 0) {
    // This process lives as long as the job and needs none of them.
    forget_secrets();
    follow_master(master, signals);
  }
  if (master == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent may have ended before prctl, and no signal follows for that.
    if (::getppid() != parent) ::raise(SIGKILL);
    job_control_parent = parent;
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

std::string signal_sender(int number) {
  const SignalSender* sender = &senders.at(static_cast<std::size_t>(number));
  if (seen_signals != nullptr && sender->pid == job_control_parent)
    sender = &seen_signals->senders.at(static_cast<std::size_t>(number));
  const auto process = sender->pid > 0 ? read_process(sender->pid) : std::nullopt;
  const std::string text = sender->pid >= 0 ? sender_text(sender->pid, sender->uid) : "";
  // A process of the job itself (`timeout`, a shell) is no scheduler.
  static constexpr std::string_view kSchedulers[] = {"slurmstepd", "slurmd",     "pbs_mom",    "sbatchd",
                                                     "res",        "flux-shell", "flux-broker"};
  const bool maybe = !process || std::ranges::find(kSchedulers, process->comm) != std::end(kSchedulers);
  const std::string scheduler = number == SIGTERM && maybe ? scheduler_text() : "";
  if (scheduler.empty()) return text;
  return (text.empty() ? "an unknown process" : text) + ", " + scheduler;
}

void count_signal(int number) {
  if (seen_signals != nullptr) ++seen_signals->count[static_cast<std::size_t>(number)];
}

bool has_job_control_parent() {
  return job_control_parent != 0;
}

void stop_job_control_parent() {
  if (job_control_parent == 0) return;
  has_stopped_parent = true;
  ::kill(job_control_parent, SIGSTOP);
}

void continue_job_control_parent() {
  if (std::exchange(has_stopped_parent, false)) ::kill(job_control_parent, SIGCONT);
}

void end_at_signals_with(int code, std::string_view last_line) {
  settled_code = code;
  if (!last_line.empty()) {
    final_line = last_line;
    has_final_line = 1;
  }
  struct sigaction action {};
  action.sa_handler = end_now;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!inherited_ignored(number)) ::sigaction(number, &action, nullptr);
  }
  if (!inherited_ignored(SIGTSTP)) ::signal(SIGTSTP, SIG_DFL);
}

void catch_signals_again(asio::signal_set& set) {
  const sigset_t ending = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  error_code ignored;
  set.clear(ignored);  // Asio installs its handler only for a signal that no set has
  add_signals(set, {SIGINT, SIGTERM, SIGHUP});
  ::pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
}

void keep_signals_waiting() {
  const sigset_t ending = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &ending, nullptr);
}

namespace {

/// Interval of the check for the foreground, since a job gets no event when it comes there.
constexpr std::chrono::milliseconds kRetryLookup{200};

/// Only the foreground job may read a terminal; a read in the background would stop the launcher. A terminal
/// of another session has no such rule, and tcgetpgrp fails there.
bool in_background() {
  const pid_t front = ::tcgetpgrp(0);
  return front >= 0 && front != ::getpgrp();
}

/// Returns a pipe with the data of a blocking descriptor, because a file on a network disk may block its
/// reader for minutes. The thread owns both descriptors. It ends with the input or with the pipe's reader,
/// and is never joined. `failed` gets the errno of its read. A file is read from `offset`, and its own
/// offset, which the shell shares, does not move.
Result<UniqueFd> read_by_thread(UniqueFd in, std::optional<off_t> offset,
                                std::shared_ptr<std::atomic<int>> failed) {
  auto [ours, theirs] = DDP_TRY(make_pipe("a pipe for standard input"));
  auto pump = [in = std::move(in), offset, out = std::move(theirs), failed = std::move(failed)]() mutable {
    std::array<char, 16384> buffer;
    for (;;) {
      const ssize_t count = offset ? ::pread(in.get(), buffer.data(), buffer.size(), *offset)
                                   : ::read(in.get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (offset) *offset += std::max<ssize_t>(count, 0);
      if (count < 0) *failed = errno;
      if (count <= 0) return;
      for (ssize_t sent = 0; sent < count;) {
        const ssize_t taken =
            ::write(out.get(), buffer.data() + sent, static_cast<std::size_t>(count - sent));
        if (taken < 0 && errno != EINTR) return;
        sent += std::max<ssize_t>(taken, 0);
      }
    }
  };
  DDP_TRY(start_detached(std::move(pump)));
  return std::move(ours);
}

}  // namespace

StdinFeed::StdinFeed(asio::any_io_executor loop)
    : stdin_(loop), room_(loop, asio::steady_timer::time_point::max()), front_(loop) {}

Awaitable<> StdinFeed::run(rendezvous::Connection& link, std::function<void(const std::string&)> warn) {
  struct stat kind {};
  const bool waits =
      ::fstat(0, &kind) == 0 && (S_ISFIFO(kind.st_mode) || S_ISSOCK(kind.st_mode) || ::isatty(0));
  // Opens the file again, because the loop makes it non-blocking and descriptor 0 is shared with the shell
  // and others.
  UniqueFd own;
  if (waits) own.reset(::open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!own) own.reset(::fcntl(0, F_DUPFD_CLOEXEC, 3));  // a socket, or another user's terminal
  const auto failed = std::make_shared<std::atomic<int>>(0);
  if (!waits) {
    const off_t offset = S_ISREG(kind.st_mode) ? ::lseek(0, 0, SEEK_CUR) : -1;
    if (offset >= 0) start_ = offset;
    auto pipe = read_by_thread(std::move(own), start_, failed);
    if (!pipe) *failed = pipe.error().sys;
    if (pipe) own = std::move(*pipe);
  }
  const int in = own.get();
  if (in >= 0) stdin_.assign(own.release());
  std::array<char, 16384> buffer;
  // The two waits come before the read, because what is read here is lost to the shell and to others of the
  // terminal. Each await may end the feed, hence the checks after them.
  for (ssize_t count = 1; count > 0;) {
    while (window_ == 0 && !link.closed() && !stopped_)
      co_await room_.async_wait(kUseTuple);
    while (in_background() && !link.closed() && !stopped_) {
      front_.expires_after(kRetryLookup);
      co_await front_.async_wait(kUseTuple);
    }
    if (stdin_.is_open() && !stopped_) co_await until_readable(stdin_);
    if (link.closed() || stopped_) co_return;
    if (in_background()) continue;  // moved to the background while it waited
    count = ::read(in, buffer.data(), std::min(buffer.size(), window_));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) {
      count = 1;  // another reader of the same file took the data: wait again
      continue;
    }
    if (count < 0) *failed = errno;
    if (count <= 0 && *failed != 0)
      warn("warning: " + system_error(*failed, "standard input").text + "; rank 0 gets end of file");
    const auto size = static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    window_ -= size;
    sent_ += size;
    link.send(rendezvous::Stdin{{buffer.data(), size}});
  }
}

void StdinFeed::taken(const rendezvous::StdinTaken& taken) {
  if (taken.ended) read_ = taken.read;
  window_ = std::min(window_ + taken.bytes, kWindow);  // a node cannot have taken more than it was sent
  room_.cancel();
}

/// Without a report of its node, rank 0 may have read all that was sent.
void StdinFeed::leave_file() {
  // The shell's next command continues behind what rank 0 has read, as if rank 0 had read the file itself.
  if (start_)
    (void)::lseek(0, *start_ + static_cast<off_t>(std::min(read_.value_or(sent_), sent_)), SEEK_SET);
  start_.reset();
}

void StdinFeed::stop() {
  stopped_ = true;
  leave_file();
  error_code ignored;
  stdin_.cancel(ignored);
  room_.cancel();
  front_.cancel();
}

}  // namespace ddp::launcher
