#include "launcher/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/exit_status.h"
#include "launcher/process_tree.h"

namespace ddp::launcher {
namespace {

enum MessageKind : int { kPat = 1, kJobMark = 2 };

constexpr std::size_t kMaxText = 1024;

/// One packet of the agent. Both ends are the same program, so the layout is its own protocol.
struct Message {
  int kind = 0;
  std::int64_t sent_ns = 0;   ///< CLOCK_BOOTTIME of the agent when it sent; same clock as ours
  std::int64_t lease_ms = 0;  ///< kPat
  std::uint32_t size = 0;     ///< kJobMark: bytes used of `text`
  char text[kMaxText] = {};
};

std::int64_t boot_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

/// To the user, who may have stopped reading: never waits for room.
void say(const std::string& text) {
  const std::string line = "ddplaunchd keeper: " + text + "\n";
  pollfd room{2, POLLOUT, 0};
  if (poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0) {
    [[maybe_unused]] const ssize_t written = write(2, line.data(), std::min<std::size_t>(line.size(), 4096));
  }
}

class Keeper {
 public:
  Keeper(const KeeperOptions& options, pid_t agent, UniqueFd socket, const sigset_t& signals)
      : options_(options),
        agent_(agent),
        agent_pidfd_(static_cast<int>(syscall(SYS_pidfd_open, agent, 0U))),
        socket_(std::move(socket)),
        signals_(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)),
        lease_end_(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)) {}

  int run() {
    if (!agent_pidfd_ || !signals_ || !lease_end_) {
      say(system_error(errno, "prepare to watch the agent").text);
      return kill_all("the agent cannot be watched");
    }
    for (;;) {
      pollfd events[] = {
          {signals_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}, {lease_end_.get(), POLLIN, 0}};
      poll(events, 3, -1);
      read_agent();
      read_signals();
      reap();
      if (agent_end_) return after_agent();
      if (lease_over()) return kill_all("the agent was silent for longer than its lease");
    }
  }

 private:
  void read_agent();
  void read_signals();
  void reap();
  bool lease_over();
  void set_lease_end(std::int64_t at_ns);
  int after_agent();
  int kill_all(const std::string& why);
  TreeKill kill_tree();

  KeeperOptions options_;
  pid_t agent_;
  UniqueFd agent_pidfd_;
  UniqueFd socket_;
  UniqueFd signals_;
  UniqueFd lease_end_;
  std::int64_t lease_end_ns_ = 0;  ///< CLOCK_BOOTTIME; 0: no lease
  std::string job_id_;
  bool stop_passed_on_ = false;
  std::optional<ExitStatus> agent_end_;
};

void Keeper::read_agent() {
  Message message;
  while (socket_) {
    const ssize_t size = recv(socket_.get(), &message, sizeof message, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    // End of file: the agent is about to end, which SIGCHLD tells; or it closed the line, then its last lease
    // counts.
    if (size <= 0) {
      socket_.reset();
      return;
    }
    if (size != sizeof message) continue;
    if (message.kind == kPat) {
      set_lease_end(message.lease_ms > 0 ? message.sent_ns + message.lease_ms * 1'000'000 : 0);
    } else if (message.kind == kJobMark && message.size <= kMaxText) {
      job_id_.assign(message.text, message.size);
    }
  }
}

void Keeper::set_lease_end(std::int64_t at_ns) {
  lease_end_ns_ = at_ns;
  itimerspec when = {};
  when.it_value.tv_sec = at_ns / 1'000'000'000;
  when.it_value.tv_nsec = at_ns % 1'000'000'000;
  timerfd_settime(lease_end_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

bool Keeper::lease_over() {
  return lease_end_ns_ != 0 && boot_time_ns() >= lease_end_ns_;
}

void Keeper::read_signals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD || stop_passed_on_) continue;
    stop_passed_on_ = true;
    syscall(SYS_pidfd_send_signal, agent_pidfd_.get(), SIGTERM, nullptr, 0U);
  }
}

void Keeper::reap() {
  siginfo_t info = {};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0) {
    if (info.si_pid == agent_) agent_end_ = ExitStatus::from_siginfo(info);
    info = {};
  }
}

TreeKill Keeper::kill_tree() {
  TreeKill kill({job_id_, {}}, options_.kill_bound);
  while (!kill.step()) {
    kill.wait(std::chrono::milliseconds(20));
    reap();  // a dead parent's children come to us, and its number becomes free
  }
  reap();
  return kill;
}

int Keeper::after_agent() {
  const ExitStatus end = *agent_end_;
  if (end.kind == ExitStatus::Kind::kExited) {
    if (!has_children()) return end.number;
    const TreeKill kill = kill_tree();
    for (const LeftProcess& left : kill.left())
      say("could not end process " + left.text());
    return end.number;
  }
  if (stop_passed_on_ && end.number == SIGTERM) {
    kill_all("the agent was stopped");
    return end.exit_code();
  }
  return kill_all("the agent was " + end.text());
}

int Keeper::kill_all(const std::string& why) {
  const TreeKill kill = kill_tree();
  const auto left = kill.left();
  say(why + "; ended " + std::to_string(kill.found() - left.size()) + " processes that it left");
  for (const LeftProcess& process : left)
    say("could not end process " + process.text());
  return kExitAgentLost;
}

/// Gives up everything but stderr, so that the far side sees the end of the agent's streams, and nobody is
/// held by us.
void leave_the_agents_things(int keep) {
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(null.get(), 0);
  dup2(null.get(), 1);
  if (keep > 3) syscall(SYS_close_range, 3U, static_cast<unsigned>(keep - 1), 0U);
  syscall(SYS_close_range, static_cast<unsigned>(keep + 1), ~0U, 0U);
}

void become_keeper() {
  prctl(PR_SET_NAME, std::string(kKeeperName).c_str(), 0, 0, 0);
  signal(SIGPIPE, SIG_IGN);  // whoever read our stderr may be gone; the exit code still tells
  // Under memory pressure the tree must go before the one that cleans up after it. Needs a privilege; without
  // it we share the risk of the others.
  const UniqueFd score(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score) [[maybe_unused]]
    const ssize_t written = write(score.get(), "-900", 4);
  // A pidfd for each process of a tree that is to be killed.
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
    // Ignored by whoever started us (nohup): so it shall be.
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
  return signals;
}

int be_agent(UniqueFd socket, pid_t keeper, const std::function<int(KeeperLink&)>& agent_main) {
  // Not KILL: an agent that dies with its keeper would leave the orphans of its workers to nobody. CONT wakes
  // one that was stopped; that the line is closed tells it the rest.
  prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0);
  KeeperLink link(std::move(socket), keeper);
  return agent_main(link);
}

}  // namespace

KeeperLink::KeeperLink(UniqueFd socket, pid_t keeper) : socket_(std::move(socket)), keeper_(keeper) {}

bool KeeperLink::keeper_lives() const {
  return getppid() == keeper_ && !readable(socket_.get());
}

void KeeperLink::set_lease(std::chrono::milliseconds lease) {
  lease_ = lease;
  pat();
}

void KeeperLink::pat() {
  send(kPat, {});
}

void KeeperLink::set_job_mark(std::string_view job_id) {
  send(kJobMark, job_id.substr(0, kMaxText));
}

void KeeperLink::send(int kind, std::string_view text) {
  Message message;
  message.kind = kind;
  message.sent_ns = boot_time_ns();
  message.lease_ms = lease_.count();
  message.size = static_cast<std::uint32_t>(text.size());
  std::copy(text.begin(), text.end(), message.text);
  // A full line means that the keeper is stopped; what it has not read will do when it wakes.
  (void)::send(socket_.get(), &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int run_keeper(const KeeperOptions& options, const std::function<int(KeeperLink&)>& agent_main) {
  // Inherited as ignored it would throw the exit statuses away.
  signal(SIGCHLD, SIG_DFL);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    say(system_error(errno, "socket between keeper and agent").text);
    return kExitAgentLost;
  }
  UniqueFd keepers(ends[0]), agents(ends[1]);
  // Both processes: orphans come to the nearest of the two that lives.
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  const sigset_t signals = watched_signals();
  sigset_t before;
  // Before the fork, so that no signal falls between it and the signalfd.
  sigprocmask(SIG_BLOCK, &signals, &before);
  const pid_t keeper = getpid();
  const pid_t agent = fork();
  if (agent == 0) {
    keepers.reset();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);  // not inherited
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return be_agent(std::move(agents), keeper, agent_main);
  }
  if (agent < 0) {
    say(system_error(errno, "fork the agent").text);
    return kExitAgentLost;
  }
  agents.reset();
  become_keeper();
  leave_the_agents_things(keepers.get());
  return Keeper(options, agent, std::move(keepers), signals).run();
}

}  // namespace ddp::launcher
