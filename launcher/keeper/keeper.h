#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"

namespace ddp::launcher {

/// The processes whose sleep lengthens a lease. A scheduler suspends a job by SIGSTOP to all its processes,
/// or it freezes them; a lease that ends meanwhile says nothing about the master.
enum class SleepRule : int {
  kNone,
  kTree,           ///< the whole tree is stopped, or the keeper itself was frozen: no other attempt can begin
  kTreeAndMaster,  ///< the whole tree and the keeper's parent, the master, are stopped
};

/// One packet from the agent to its keeper; `text` is sent only as far as it is used. Both ends are the same
/// program, so the struct's layout is the protocol.
struct KeeperPacket {
  enum Kind : int { kRenew = 1, kJobMark = 2, kCgroup = 3, kCgroupGone = 4, kDirectory = 5 };
  /// Room for a job id, and for the path of a control group.
  static constexpr std::size_t kMaxText = 4096;

  int kind = 0;
  std::int64_t sent_ns = 0;            ///< CLOCK_BOOTTIME of sending; the keeper has the same clock
  std::int64_t lease_ms = 0;           ///< kRenew
  SleepRule sleep = SleepRule::kNone;  ///< kRenew
  char text[kMaxText];                 ///< all other kinds
};
inline constexpr std::size_t kKeeperPacketHead = offsetof(KeeperPacket, text);

/// The agent's end of the socket to its keeper. One thread. No call blocks or reports failure; watch_fd()
/// reports the keeper's end.
class KeeperSocket {
 public:
  /// `stop_sender`: see stop_sender(); nullptr: unknown.
  KeeperSocket(UniqueFd socket, pid_t keeper, const char* stop_sender = nullptr)
      : socket_(std::move(socket)), keeper_(keeper), stop_sender_(stop_sender) {}

  /// Becomes readable when the keeper has died; nothing is ever read from it. The agent must then end its
  /// tree itself (kill_own_tree) and exit, because no other process cleans up after it. The keeper's death
  /// wakes a stopped agent (SIGCONT).
  int watch_fd() const { return socket_.get(); }
  bool is_keeper_alive() const;
  pid_t keeper() const { return keeper_; }
  /// Who sent the stop signal that the keeper has forwarded: "kill (pid 77 of user ann)". Empty: none, the
  /// kernel (a terminal), or it is unknown.
  std::string stop_sender() const { return stop_sender_ == nullptr ? "" : stop_sender_; }

  /// The time that the agent may be silent after it renewed the watchdog before the keeper kills it with its
  /// whole tree. 0 (the default) means for ever. The call also renews the watchdog.
  void set_lease(std::chrono::milliseconds lease) {
    lease_ = lease;
    renew();
  }
  /// Counts from the next renewal.
  void set_sleep_rule(SleepRule rule) { sleep_ = rule; }
  /// Renews the watchdog.
  void renew() { send(KeeperPacket::kRenew, {}); }

  /// The job whose mark the keeper may search for outside the tree (TreeScope::job_id), at most 4096 bytes.
  void set_job_mark(std::string_view job_id) { send(KeeperPacket::kJobMark, job_id); }

  /// Reports the control group of an attempt (Cgroup::path); call before any process runs in it. The keeper
  /// kills the group with the tree, and removes it if the agent could not. `drop_cgroup`: the group was
  /// removed.
  void set_cgroup(std::string_view path) { send(KeeperPacket::kCgroup, path); }
  void drop_cgroup(std::string_view path) { send(KeeperPacket::kCgroupGone, path); }

  /// Reports a directory that holds only files (the workers' sockets). The keeper removes it if the agent
  /// could not. Empty: it was removed.
  void set_directory(std::string_view path) { send(KeeperPacket::kDirectory, path); }

 private:
  void send(int kind, std::string_view text);
  bool send_now(int kind, std::string_view text);

  UniqueFd socket_;
  pid_t keeper_;
  const char* stop_sender_;  ///< memory that the keeper shares
  std::chrono::milliseconds lease_{0};
  SleepRule sleep_ = SleepRule::kNone;
  /// Kind and text of messages that a slow keeper has not taken. Renewals may be lost, these may not.
  std::deque<std::pair<int, std::string>> unsent_;
};

/// Exit code of a keeper whose agent was killed, or whose lease ran out: "a node was lost"
/// (docs/users/exit_codes.md).
inline constexpr int kExitAgentLost = 113;
/// Exit code of ddplaunchd's keeper when a process of its tree survived its SIGKILL. It is outside of the
/// codes that prove to the master that no worker of the node is alive (0, 110 to 119).
inline constexpr int kExitProcessesLeft = 120;
/// The prefix of each line of a keeper on stderr. The first line says how the agent ended.
inline constexpr std::string_view kKeeperSays = "ddplaunchd keeper: ";

struct KeeperOptions {
  std::chrono::milliseconds kill_bound{
      5000};  ///< how long a tree may take to die before the remaining processes are named
  /// The time that an agent without a lease may take to end after it has closed its link.
  std::chrono::milliseconds end_time{10'000};
  /// Exit code if processes remain after that; unset: the same code as without them.
  std::optional<int> exit_code_if_left = {};
  /// Runs in the keeper after the fork: wipes its copy of what only the agent needs (secrets). Must not
  /// throw.
  std::function<void()> forget_secrets = {};
};

/// Splits the process in two. Must run before the first thread starts, because the child goes on as a whole
/// program: there, nobody would release a lock that another thread holds at the fork.
///
/// The child is the agent: it runs agent_main, and run_keeper returns agent_main's value there. It is a
/// subreaper and leads a session of its own. It alone holds stdin and stdout, and it has the caller's signal
/// mask.
///
/// The parent is the keeper, under the name "ddp-keeper". It holds only stderr. run_keeper does not return
/// there: the process ends with the exit code of the program when everything is over:
/// - The agent ended by itself: its exit code, after every process that it left behind was killed.
/// - The agent was killed, or the lease ran out (measured with CLOCK_BOOTTIME, which counts suspended time):
///   the tree, a stopped agent included, is frozen and killed; kExitAgentLost. If the agent died of the
///   forwarded stop signal: 128 plus that signal, such as 143.
/// - A process could not be killed: KeeperOptions::exit_code_if_left, however the agent ended.
/// A keeper that is stopped (SIGSTOP) continues within 0.5 s.
/// The first SIGTERM, SIGINT or SIGHUP to the keeper is forwarded to the agent, later ones are dropped.
/// Signals that the caller ignored stay ignored. When the keeper's parent ends (the master, the SSH session),
/// a stopped agent is woken (SIGCONT) to see the end of its link. stderr reports the processes that were
/// killed and that could not be killed. If the keeper itself is killed, the agent is notified
/// (KeeperSocket::watch_fd). If both are killed at the same moment, the workers still get their death signal.
/// Processes that they started in sessions of their own then survive, inside a control group until the next
/// job on this node.
int run_keeper(const KeeperOptions& options, const std::function<int(KeeperSocket&)>& agent_main);

}  // namespace ddp::launcher
