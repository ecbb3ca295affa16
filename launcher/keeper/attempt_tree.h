#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "launcher/keeper/cgroup.h"
#include "launcher/keeper/keeper.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {

/// Ends the processes of one attempt after another on this node. Makes the attempt's control group where
/// possible, and reports the group to the keeper. Loop thread.
class AttemptTree {
 public:
  /// `keeper` must outlive the object.
  AttemptTree(asio::any_io_executor executor, KeeperSocket& keeper);

  void set_job(std::string job_id) { scope_.job_id = std::move(job_id); }

  /// Makes the control group of the workers; call before they start. A missing group is no failure, because
  /// the process tree is walked in any case.
  const TreeScope& begin(std::uint32_t attempt);
  const TreeScope& scope() const { return scope_; }
  /// Returns how the attempt will be ended, as text: the control group's path, or why the attempt has none.
  const std::string& how() const { return how_; }

  /// Ends and reaps what the workers left (daemons, loaders in sessions of their own), then removes the
  /// group. Call after the last worker was reaped. Returns what could not be ended within kKillBound, without
  /// zombies.
  Awaitable<std::vector<LeftProcess>> end();

 private:
  bool anything_left() const { return has_children() || (scope_.cgroup && !scope_.cgroup->pids().empty()); }

  asio::any_io_executor executor_;
  KeeperSocket& keeper_;
  TreeScope scope_;
  std::string how_;
};

/// The result of a sweep.
struct SweptJob {
  std::size_t found = 0;
  std::vector<std::string> left;  ///< processes that did not end, and why others may live; empty: none lives
};

/// Ends the processes of a job that no live keeper guards, wherever they are: those with its mark
/// (TreeScope::job_id) and their descendants. Never touches children of this process. `stop` ends it early.
Awaitable<SweptJob> sweep_job(asio::any_io_executor executor, std::string job_id, const bool* stop);

/// Makes the keepers of a job end with all that they guard, although nobody may stop the job any more:
/// SIGTERM first, SIGKILL after 8 s. The job's master must have ended. Returns the number of processes that
/// were found, with those keepers and their agents.
Awaitable<std::size_t> stop_keepers(asio::any_io_executor executor, std::string job_id, const bool* stop);

/// One node of a running job, whose agent was lost.
struct LostNode {
  std::string job_id;
  std::set<pid_t> live_keepers;  ///< of the job's other nodes on this machine, as the master knows them
  std::uint64_t since_ns = 0;    ///< CLOCK_MONOTONIC at which the lost agent ran already; 0: not known
  std::set<pid_t> own = {};      ///< its agent, keeper and workers
};

/// Ends the lost node's keeper, and every process of the job on this machine that no keeper guards. Another
/// keeper may guard another job that has the same id, so its processes are named in `left`. An empty `left`
/// is a proof that no process of the lost node lives: `left` also names the processes that could belong to it
/// and cannot be told apart. These are orphans younger than the lost agent, in a systemd unit or slice that
/// could be its own, of another user or without the mark of another job.
Awaitable<SweptJob> sweep_lost_node(asio::any_io_executor executor, LostNode node, const bool* stop);

/// Returns the control group in which a process and all that it starts stay, unless root moves them: a user's
/// slice, a service, or a container. Empty: there is none. `groups`: the text of /proc/PID/cgroup.
std::string systemd_unit(std::string_view groups);

}  // namespace ddp::launcher
