#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"

namespace ddp::launcher {

/// Exit code of a keeper whose agent was killed, or whose lease ran out: "a node was lost"
/// (docs/exit_codes.md).
inline constexpr int kExitAgentLost = 113;
/// Exit code of ddplaunchd's keeper when a process of its tree outlived its SIGKILL. None of the codes that
/// prove to the master that no worker of the node lives (0, 110 to 119).
inline constexpr int kExitProcessesLeft = 120;
/// Before each line of a keeper on stderr. The first one says what became of the agent.
inline constexpr std::string_view kKeeperSays = "ddplaunchd keeper: ";

/// The agent's end of the line to its keeper. One thread. Nothing here blocks or fails visibly: when the
/// keeper has died, watch_fd() tells it.
class KeeperLink {
 public:
  KeeperLink(UniqueFd socket, pid_t keeper);

  /// Becomes readable when the keeper has died; nothing is ever read from it. The agent then has to end its
  /// tree itself (kill_own_tree) and leave: nobody cleans up behind it any more. An agent that was stopped is
  /// woken (SIGCONT).
  int watch_fd() const { return socket_.get(); }
  bool is_keeper_alive() const;
  pid_t keeper() const { return keeper_; }

  /// How long the agent may be silent after a pat before the keeper kills it with its whole tree; 0: for
  /// ever, which holds until the first call. Counts as a pat.
  void set_lease(std::chrono::milliseconds lease);
  void renew();

  /// The job whose mark the keeper may look for outside the tree (TreeScope::job_id), at most 4096 bytes.
  void set_job_mark(std::string_view job_id);

  /// The control group of an attempt (Cgroup::path), before anything runs in it; the keeper kills it with the
  /// tree, and removes it when the agent could not. `drop_cgroup`: it is removed.
  void set_cgroup(std::string_view path);
  void drop_cgroup(std::string_view path);

  /// A directory of ours with files only (the workers' sockets), which the keeper removes when the agent
  /// could not.
  void set_directory(std::string_view path);

 private:
  void send(int kind, std::string_view text);
  bool send_now(int kind, std::string_view text);

  UniqueFd socket_;
  pid_t keeper_;
  std::chrono::milliseconds lease_{0};
  /// Kind and text, for a keeper that did not read for long: pats may be lost, these not.
  std::deque<std::pair<int, std::string>> unsent_;
};

struct KeeperOptions {
  std::chrono::milliseconds kill_bound{
      5000};  ///< how long a tree may take to die before what is left is named
  /// Exit code when something is left then; unset: as if nothing were.
  std::optional<int> exit_code_if_left = {};
  /// Run in the keeper after the fork: wipes its copy of what only the agent needs (secrets). Must not throw.
  std::function<void()> forget_secrets = {};
};

/// Splits the process in two. Must run before the first thread; the only fork of the program.
///
/// The child is the agent: it runs agent_main, whose value run_keeper returns there. It is a subreaper, leads
/// a session of its own, holds stdin and stdout alone, has the signal mask that we were called with.
///
/// The parent is the keeper, under the name "ddp-keeper": it holds only stderr and returns the exit code of
/// the program when everything is over:
/// - The agent ended by itself: its exit code, after whatever it left behind was killed.
/// - The agent was killed, or the lease ran out (measured with CLOCK_BOOTTIME, which counts a suspended
/// machine too): the tree,
///   a stopped agent included, is frozen and killed; kExitAgentLost. An agent that died of the stop that was
///   passed on to it: 143.
/// - A process could not be killed: KeeperOptions::exit_code_if_left, whatever became of the agent.
/// A keeper that somebody stops (SIGSTOP) continues when the agent renews its lease or ends, and when the
/// parent ends; while it cleans up, within 0.5 s.
/// SIGTERM, SIGINT and SIGHUP to the keeper reach the agent as one SIGTERM; those that were ignored stay so.
/// When the keeper's parent ends (the master, the SSH session), an agent that is stopped is woken (SIGCONT),
/// so that it sees the end of its link. What was killed, and what could not be, is said on stderr. If the
/// keeper itself is killed, the agent is told (KeeperLink::watch_fd). If both are killed at the same moment,
/// the workers still get their death signal, but what they started in sessions of their own lives on, in a
/// control group until the next job there.
int run_keeper(const KeeperOptions& options, const std::function<int(KeeperLink&)>& agent_main);

}  // namespace ddp::launcher
