// The agent's end of the socket to its keeper; the keeper: what it hears, the lease, signals, and the end of
// the tree; and run_keeper(), which splits the process in two.
#include "launcher/keeper/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <vector>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/exit_status.h"
#include "base/files.h"
#include "base/result.h"
#include "base/text.h"
#include "launcher/keeper/cgroup.h"
#include "launcher/keeper/process_table.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {

bool KeeperSocket::is_keeper_alive() const {
  pollfd entry{socket_.get(), POLLIN, 0};
  return getppid() == keeper_ && poll(&entry, 1, 0) != 1;
}

/// A full socket means that the keeper is stopped. On waking it reads the queued packets, which suffice as
/// renewals.
void KeeperSocket::send(int kind, std::string_view text) {
  while (!unsent_.empty() && send_now(unsent_.front().first, unsent_.front().second))
    unsent_.pop_front();
  // In order: "the group is gone" must not arrive before the packet that named the group. A late renewal is
  // worth nothing, so it is not kept.
  const bool sent = unsent_.empty() && send_now(kind, text);
  if (!sent && kind != KeeperPacket::kRenew) unsent_.emplace_back(kind, text);
}

bool KeeperSocket::send_now(int kind, std::string_view text) {
  KeeperPacket packet;
  packet.kind = kind;
  packet.sent_ns = boot_now().count();
  packet.lease_ms = lease_.count();
  packet.sleep = sleep_;
  text = text.substr(0, KeeperPacket::kMaxText);
  std::copy(text.begin(), text.end(), packet.text);
  return ::send(socket_.get(), &packet, kKeeperPacketHead + text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
         errno != EAGAIN;
}

namespace {

constexpr std::chrono::milliseconds kRemoveTime{200};
/// The time in ms between two looks at the parent where the kernel has no pidfds.
constexpr int kLookPause = 1000;
/// In this time an agent that continues renews its lease.
constexpr std::chrono::milliseconds kAgentWakes{3000};
/// The timer of the lease fires in time, unless the keeper was frozen.
constexpr std::chrono::nanoseconds kOverslept = std::chrono::seconds(1);

/// Writes to stderr. Never blocks, because the reader may have stopped reading.
void say(const std::string& text) {
  const std::string line = std::string(kKeeperSays) + text + "\n";
  pollfd room{2, POLLOUT, 0};
  if (poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0) {
    [[maybe_unused]] const ssize_t written = write(2, line.data(), std::min<std::size_t>(line.size(), 4096));
  }
}

/// Continues a stopped keeper, which would guard no worker and hold its SSH session open. A periodic timer of
/// the kernel sends SIGCONT; a running keeper only handles the signal. A SIGSTOP that arrives between the
/// expiry of a timer and the handler discards the signal, and that timer stays silent: hence the second one.
class ContinueTimers {
 public:
  /// Call before the fork: the keeper is the parent, and a child inherits no timers.
  ContinueTimers() {
    struct sigaction handler = {};
    handler.sa_handler = [](int) {};  // a timer of an ignored signal would not repeat
    handler.sa_flags = SA_RESTART;
    sigaction(SIGCONT, &handler, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGCONT;
    for (auto& timer : timers_) {
      timer.emplace();
      if (timer_create(CLOCK_MONOTONIC, &event, &*timer) != 0) timer.reset();
    }
    renew();
  }
  ContinueTimers(const ContinueTimers&) = delete;
  ContinueTimers& operator=(const ContinueTimers&) = delete;

  /// Starts both timers anew. While the keeper runs, only the first one expires.
  void renew() {
    std::chrono::nanoseconds first{0};
    for (const auto& timer : timers_) {
      first += kStopTime;
      const timespec later{first / std::chrono::seconds(1), (first % std::chrono::seconds(1)).count()};
      const itimerspec periodic{later, later};
      if (timer) timer_settime(*timer, 0, &periodic, nullptr);
    }
  }

 private:
  /// The longest time that a keeper stays stopped.
  static constexpr std::chrono::milliseconds kStopTime{500};

  std::array<std::optional<timer_t>, 2> timers_;
};

constexpr std::size_t kSenderBytes = 256;

class Keeper {
 public:
  Keeper(const KeeperOptions& options, pid_t agent, UniqueFd socket, const sigset_t& signals,
         ContinueTimers& continue_timers, char* stop_sender)
      : options_(options),
        continue_timers_(continue_timers),
        agent_(agent),
        agent_fd_(open_process(agent)),
        parent_(getppid()),
        parent_fd_(open_process(parent_)),
        socket_(std::move(socket)),
        stop_sender_(stop_sender),
        signals_(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)),
        lease_end_(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)) {}

  int run() {
    if (!agent_fd_ || !signals_ || !lease_end_) {
      say(system_error(errno, "prepare to watch the agent").text);
      return kill_all("the agent cannot be watched");
    }
    for (;;) {
      pollfd events[] = {{signals_.get(), POLLIN, 0},
                         {socket_.get(), POLLIN, 0},
                         {lease_end_.get(), POLLIN, 0},
                         {has_pidfds() ? parent_fd_.get() : -1, POLLIN, 0}};
      // Without pidfds the end of the parent is no event, so it is looked for once a second.
      poll(events, 4, has_pidfds() || parent_ == 0 ? -1 : kLookPause);
      continue_timers_.renew();
      // The order below matters: signals before the end of the agent, so that an agent that ends by a signal
      // that was passed on counts as stopped; and a renewal of the lease before its end is checked.
      if (events[3].revents != 0 || (parent_ != 0 && getppid() != parent_)) parent_ended();
      read_signals();
      reap();
      read_agent();  // after reap(), so that all packets of an agent that has ended have arrived
      if (agent_end_) return after_agent();
      forgive_sleep();
      if (lease_over()) return end_lease();
    }
  }

 private:
  void read_agent();
  void handle(const KeeperPacket& packet, std::string text);
  void read_signals();
  void parent_ended();
  void signal_agent(int number) { (void)signal_process(agent_fd_.get(), agent_, number); }
  void reap();
  bool lease_over() const;
  void forgive_sleep();
  bool all_stopped();
  void set_lease_end(std::int64_t at_ns);
  int after_agent();
  int end_lease();
  int kill_all(const std::string& why);
  bool anything_left();
  void kill_tree(const std::string& why);
  bool remove_traces();
  void remove_directory();
  int exit_code(int code) const { return left_ ? options_.exit_code_if_left.value_or(code) : code; }

  KeeperOptions options_;
  ContinueTimers& continue_timers_;
  pid_t agent_;
  UniqueFd agent_fd_;
  pid_t parent_;  ///< the master, or the SSH session; 0: outside of our PID namespace, or it has ended
  UniqueFd parent_fd_;
  UniqueFd socket_;
  char* stop_sender_;  ///< KeeperSocket::stop_sender; nullptr: no memory
  UniqueFd signals_;
  UniqueFd lease_end_;
  std::int64_t lease_end_ns_ = 0;       ///< CLOCK_BOOTTIME; 0: no lease
  std::chrono::milliseconds lease_{0};  ///< of the last renewal
  SleepRule sleep_ = SleepRule::kNone;
  std::string job_id_;
  std::vector<std::shared_ptr<Cgroup>> cgroups_;  ///< of attempts that are not over
  std::string directory_;                         ///< of the workers' sockets; empty: none
  bool left_ = false;                             ///< a process survived its SIGKILL
  int stop_passed_on_ = 0;                        ///< the stop signal that was forwarded; 0: none
  std::optional<ExitStatus> agent_end_;
};

void Keeper::read_agent() {
  KeeperPacket packet;
  while (socket_) {
    const ssize_t size = recv(socket_.get(), &packet, sizeof packet, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    // End of file: the agent is about to end, which SIGCHLD reports. One that hangs at its end has no lease,
    // and nobody would find it later.
    if (size <= 0) {
      socket_.reset();
      if (lease_end_ns_ == 0) set_lease_end((boot_now() + options_.end_time).count());
      return;
    }
    if (static_cast<std::size_t>(size) < kKeeperPacketHead) continue;
    handle(packet, std::string(packet.text, static_cast<std::size_t>(size) - kKeeperPacketHead));
  }
}

void Keeper::handle(const KeeperPacket& packet, std::string text) {
  switch (packet.kind) {
    case KeeperPacket::kRenew:
      lease_ = std::chrono::milliseconds(packet.lease_ms);
      sleep_ = packet.sleep;
      // From the time of sending: a packet that waited in the socket of a stopped keeper must not lengthen
      // the lease.
      set_lease_end(packet.lease_ms > 0 ? packet.sent_ns + packet.lease_ms * 1'000'000 : 0);
      break;
    case KeeperPacket::kJobMark: job_id_ = std::move(text); break;
    case KeeperPacket::kCgroup:
      // The lock keeps other agents from taking the group for stale when this agent has died.
      if (auto group = Cgroup::open(std::move(text)); group)
        cgroups_.push_back(std::make_shared<Cgroup>(std::move(*group)));
      break;
    case KeeperPacket::kCgroupGone:
      std::erase_if(cgroups_, [&text](const auto& group) { return group->path() == text; });
      break;
    case KeeperPacket::kDirectory: directory_ = std::move(text); break;
  }
}

void Keeper::set_lease_end(std::int64_t at_ns) {
  lease_end_ns_ = at_ns;
  itimerspec when = {};
  when.it_value.tv_sec = at_ns / 1'000'000'000;
  when.it_value.tv_nsec = at_ns % 1'000'000'000;
  timerfd_settime(lease_end_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

/// Moves the end of the lease while nothing of the job runs (SleepRule), so that the agent has time to hear
/// its master when all continue.
void Keeper::forgive_sleep() {
  if (lease_end_ns_ == 0 || sleep_ == SleepRule::kNone) return;
  const auto now = boot_now();
  const bool frozen = sleep_ == SleepRule::kTree && now.count() > lease_end_ns_ + kOverslept.count();
  if (frozen || all_stopped()) set_lease_end((now + std::max(lease_, kAgentWakes)).count());
}

/// Returns whether the agent and all its descendants are stopped, and the master if the rule asks for that.
bool Keeper::all_stopped() {
  const auto is_stopped = [](const ProcessInfo& info) {
    if (info.state != 'Z') return info.state == 'T' || info.stops;
    // The main thread of a process may end before the others.
    return list_directory("/proc/" + std::to_string(info.pid) + "/task").size() <= 1;
  };
  if (sleep_ == SleepRule::kTreeAndMaster) {
    const auto master = parent_ == 0 ? std::nullopt : read_process(parent_);
    if (!master || !is_stopped(*master)) return false;
  }
  const auto agent = read_process(agent_);
  if (!agent || !is_stopped(*agent)) return false;
  ProcessMap processes;
  visit_processes([&](ProcessInfo&& info) { processes.emplace(info.pid, std::move(info)); });
  return std::ranges::all_of(processes, [&](const auto& entry) {
    const auto is_agent = [this](const ProcessInfo& info) { return info.pid == agent_; };
    return is_stopped(entry.second) || find_upwards(processes, entry.first, is_agent) == 0;
  });
}

bool Keeper::lease_over() const {
  return lease_end_ns_ != 0 && boot_now().count() >= lease_end_ns_;
}

void Keeper::read_signals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD || stop_passed_on_ != 0) continue;
    stop_passed_on_ = static_cast<int>(info.ssi_signo);
    // The agent would see only that the keeper has sent it, and the sender may be gone soon.
    const bool from_process = info.ssi_code <= 0 && stop_sender_ != nullptr;
    if (from_process) {
      const std::string sender = sender_text(static_cast<pid_t>(info.ssi_pid), info.ssi_uid);
      stop_sender_[sender.copy(stop_sender_, kSenderBytes - 1)] = '\0';
    }
    signal_agent(stop_passed_on_);
    // A stopped agent would not receive the signal.
    signal_agent(SIGCONT);
  }
}

/// The other side of the agent's link has most likely ended, too. SIGCONT lets a stopped agent see that; a
/// running agent decides for itself.
void Keeper::parent_ended() {
  parent_ = 0;
  parent_fd_.reset();
  signal_agent(SIGCONT);
}

void Keeper::reap() {
  siginfo_t info = {};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0) {
    if (info.si_pid == agent_) agent_end_ = ExitStatus::from_siginfo(info);
    info = {};
  }
}

/// Kills the tree and the control groups. A group of an earlier attempt still exists only if its processes
/// could not be ended. `why` is reported with the number of ended processes; if it is empty, only survivors
/// are reported.
void Keeper::kill_tree(const std::string& why) {
  // TreeKill knows one group, that of the current attempt.
  for (std::size_t i = 0; i + 1 < cgroups_.size(); ++i)
    cgroups_[i]->kill();
  TreeKill kill({job_id_, cgroups_.empty() ? nullptr : cgroups_.back()}, options_.kill_bound);
  while (!kill.step()) {
    kill.wait(std::chrono::milliseconds(20));
    reap();  // orphans are re-parented to the keeper; reaping frees their numbers
  }
  reap();
  const auto left = kill.left();
  const std::size_t ended = kill.found() - std::min(left.size(), kill.found());
  if (!why.empty()) say(why + "; killed " + counted(ended, "leftover process", "leftover processes"));
  for (const LeftProcess& process : left)
    say("could not kill process " + process.text());
  const bool groups_empty = remove_traces();
  left_ = !left.empty() || !groups_empty;
}

/// Removes what the agent would have removed itself. False: a control group still holds a process.
bool Keeper::remove_traces() {
  bool empty = true;
  for (const auto& group : cgroups_)
    empty = (group->remove(kRemoveTime) || group->pids().empty()) && empty;
  cgroups_.clear();
  if (!directory_.empty()) remove_directory();
  return empty;
}

/// Runs in a child that is waited for only briefly, because the directory may lie on a hanging disk.
void Keeper::remove_directory() {
  const pid_t child = fork();
  if (child == 0) {
    close_descriptors(0, ~0U);  // no peer must wait for the end of file of our descriptors
    for (const auto& entry : list_directory(directory_))
      ::unlink(entry.c_str());
    ::rmdir(directory_.c_str());
    _exit(0);
  }
  const UniqueFd remover = child < 0 ? UniqueFd() : open_process(child);
  if (remover) wait_for_end(remover.get(), kRemoveTime);
  reap();
}

bool Keeper::anything_left() {
  return has_children() || std::any_of(cgroups_.begin(), cgroups_.end(),
                                       [](const auto& group) { return !group->pids().empty(); });
}

int Keeper::after_agent() {
  const ExitStatus end = *agent_end_;
  // An agent that exits has ended its workers itself. What is left is ended without a word about a failure.
  if (end.kind == ExitStatus::Kind::kExited) {
    if (anything_left())
      kill_tree({});
    else
      remove_traces();
    return exit_code(end.number);
  }
  if (stop_passed_on_ != 0 && end.number == stop_passed_on_) {
    kill_tree("the agent was stopped");
    return exit_code(end.exit_code());
  }
  return kill_all("the agent was " + end.text());
}

/// Stops the agent first, because a running agent would report the workers that die as the cause of the
/// failure.
int Keeper::end_lease() {
  signal_agent(SIGSTOP);
  return kill_all("the agent's lease expired");
}

int Keeper::kill_all(const std::string& why) {
  kill_tree(why);
  return exit_code(kExitAgentLost);
}

/// Closes everything but stderr and the socket, so that the other side sees the end of the agent's streams
/// and nothing else is held open.
void leave_the_agents_things(int keep) {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(null.get(), 0);
  dup2(null.get(), 1);
  if (keep > 3) close_descriptors(3, static_cast<unsigned>(keep - 1));
  close_descriptors(static_cast<unsigned>(keep + 1), ~0U);
}

void become_keeper() {
  prctl(PR_SET_NAME, std::string(kKeeperName).c_str(), 0, 0, 0);
  signal(SIGPIPE, SIG_IGN);  // the reader of stderr may be gone; the exit code still reports the end
  // Under memory pressure the tree must go before the keeper that cleans up after it. Needs a privilege;
  // without it the keeper runs the same risk as others.
  const UniqueFd score(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score) [[maybe_unused]]
    const ssize_t written = write(score.get(), "-900", 4);
  // The keeper needs a descriptor for each process of a tree that it kills.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

sigset_t watched_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction now = {};
    // A signal that the parent ignored (nohup) stays ignored.
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
  return signals;
}

int be_agent(UniqueFd socket, pid_t keeper, const char* stop_sender,
             const std::function<int(KeeperSocket&)>& agent_main) {
  // SIGKILL would be wrong: it would leave the workers' orphans to no one. SIGCONT wakes a stopped agent,
  // which then sees that the socket is closed.
  prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0);
  // A signal to the keeper's whole process group must not hit both processes.
  setsid();
  KeeperSocket link(std::move(socket), keeper, stop_sender);
  return agent_main(link);
}

}  // namespace

int run_keeper(const KeeperOptions& options, const std::function<int(KeeperSocket&)>& agent_main) {
  // An inherited SIG_IGN would discard the exit statuses.
  signal(SIGCHLD, SIG_DFL);
  // Slurm sends these signals to every process of a step before its time is over (--signal=USR1@60). They are
  // meant for the workers and must not end agent and keeper.
  signal(SIGUSR1, SIG_IGN);
  signal(SIGUSR2, SIG_IGN);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    say(system_error(errno, "socket between keeper and agent").text);
    return kExitAgentLost;
  }
  UniqueFd keepers(ends[0]), agents(ends[1]);
  // Both processes are subreapers: orphans are re-parented to the nearest of the two that is alive.
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  const sigset_t signals = watched_signals();
  sigset_t before;
  // Block the signals before the fork, so that none is lost between the fork and the signalfd.
  sigprocmask(SIG_BLOCK, &signals, &before);
  const pid_t keeper = getpid();
  ContinueTimers continue_timers;
  void* const shared =
      ::mmap(nullptr, kSenderBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char* const stop_sender = shared == MAP_FAILED ? nullptr : static_cast<char*>(shared);
  const pid_t agent = fork();
  if (agent == 0) {
    signal(SIGCONT, SIG_DFL);
    keepers.reset();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);  // not inherited
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return be_agent(std::move(agents), keeper, stop_sender, agent_main);
  }
  if (agent < 0) {
    say(system_error(errno, "fork the agent").text);
    return kExitAgentLost;
  }
  agents.reset();
  if (options.forget_secrets) options.forget_secrets();
  become_keeper();
  leave_the_agents_things(keepers.get());
  // The timers end with the process: a stop between the two would last, and hold the SSH session open.
  ::_exit(Keeper(options, agent, std::move(keepers), signals, continue_timers, stop_sender).run());
}

}  // namespace ddp::launcher
