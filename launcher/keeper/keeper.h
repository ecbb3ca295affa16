#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string_view>

#include "launcher/keeper/keeper_link.h"

namespace ddp::launcher {

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

/// Splits the process in two. Must run before the first thread starts; it is the only fork of the program.
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
/// (KeeperLink::watch_fd). If both are killed at the same moment, the workers still get their death signal.
/// Processes that they started in sessions of their own then survive, inside a control group until the next
/// job on this node.
int run_keeper(const KeeperOptions& options, const std::function<int(KeeperLink&)>& agent_main);

}  // namespace ddp::launcher
