#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/keeper/process_table.h"

namespace ddp::launcher {

/// A process that was executed with the mark of the job (TreeScope).
struct MarkedProcess {
  pid_t pid = 0;
  int local_rank = -1;  ///< LOCAL_RANK; -1: not a number
  UniqueFd fd;          ///< open_process; of the process whose environment was read
};

/// Reads the environments of processes for the mark of a job. A child process reads them: the kernel blocks a
/// reader of /proc/PID/environ while the process's memory is locked (an exec or a page fault on a dead disk).
/// A child that makes no progress is killed, and a new one continues behind the process that blocked it. A
/// call waits only for the death of a killed child, half a second at most. One thread. waitid finds the child
/// only with __WCLONE. The child holds none of our descriptors.
class MarkSearch {
 public:
  /// If no child can be made, nothing is found.
  MarkSearch(std::string_view job_id, std::vector<pid_t> pids);
  ~MarkSearch();
  MarkSearch(const MarkSearch&) = delete;
  MarkSearch& operator=(const MarkSearch&) = delete;

  /// The processes found since the last call.
  std::vector<MarkedProcess> take_found();
  bool is_over() const { return next_ == pids_.size(); }
  /// True if some environments were not read: a process blocked its reader or was always within an exec, or
  /// no reader could be made.
  bool skipped() const { return skipped_; }
  /// The processes that may have replaced the mark, once the search is over: their environment does not name
  /// another job, or could not be read.
  std::vector<pid_t> take_unproven() { return std::move(unproven_); }
  /// Waits until take_found is worth calling again, at most `limit`.
  void wait(std::chrono::milliseconds limit) const;
  pid_t reader() const { return reader_; }

 private:
  using Clock = std::chrono::steady_clock;

  void start_reader();
  void stop_reader();
  void skip_to(std::size_t next);

  std::string mark_;
  std::vector<pid_t> pids_;
  std::size_t next_ = 0;  ///< index of the process that is being read
  bool skipped_ = false;
  std::vector<pid_t> unproven_;
  pid_t reader_ = -1;
  UniqueFd answers_;              ///< one packet for each process in turn
  Clock::time_point stalled_at_;  ///< when the reader counts as blocked, unless it answers
};

/// Returns whether a child of this process reads for a MarkSearch. A reader that the kernel holds outlives
/// its search. It is known by its exit signal, which is not SIGCHLD. Never blocks.
bool is_search_reader(pid_t child);

/// The comm of a keeper. Every process below a keeper belongs to that keeper, whatever its environment says.
inline constexpr std::string_view kKeeperName = "ddp-keeper";

class Cgroup;

/// The processes that a kill reaches: every descendant of the calling process and every member of the control
/// group. If job_id is set, also processes elsewhere that carry the job's mark. The mark is
/// DDPLAUNCH_JOB_ID=<job_id> together with any LOCAL_RANK in the environment at exec, as every worker has
/// them. Never reached: this process and its ancestors, processes below another keeper (another node of the
/// job on this machine, another job), and processes of another effective uid outside our tree.
struct TreeScope {
  std::string job_id;                ///< empty: descendants only
  std::shared_ptr<Cgroup> cgroup{};  ///< of the attempt; empty: it has none
};

/// A process, and the descriptor that stays with it when its number is reused (open_process).
struct KnownProcess {
  pid_t pid = 0;
  UniqueFd fd;
};

/// A process that a kill could not end. Zombies do not count: they hold nothing but a number.
struct LeftProcess {
  pid_t pid = 0;
  uid_t uid = 0;
  char state = '?';
  std::string comm;
  int err = 0;  ///< errno of the signal (EPERM: another user), or 0: it was signaled but does not end

  std::string text() const;  ///< "4242 (python3, state D, uid 1000)"
};

/// Ends a whole tree even while it forks: stops every process (SIGSTOP) until a pass finds nothing new, then
/// kills all (SIGKILL), and repeats until nothing new is found. One order to the kernel first kills the
/// control group. Marked processes elsewhere are searched for last, when all others have got their SIGKILL
/// (MarkSearch); the same steps then apply to what was found. Each process is identified by a descriptor that
/// was opened before its parent was read (open_process), so a reused number is never hit. The caller must be
/// a subreaper, or orphans are out of reach. Reaps nothing: the owner of the children reaps them. One thread.
///
/// In an event loop: call step() until it returns true, with wait() or a timer of a few ms in between.
class TreeKill {
 public:
  using Clock = std::chrono::steady_clock;

  /// Gives up after `bound`. `only`: kills only these children with their descendants; unset: all children.
  TreeKill(TreeScope scope, std::chrono::milliseconds bound,
           std::optional<std::vector<KnownProcess>> only = {});
  TreeKill(TreeKill&&) noexcept;
  ~TreeKill();

  /// Makes one pass over /proc, 10 to 20 µs for each process of the machine. True: all are dead, or the bound
  /// is reached.
  bool step();

  /// Blocks until every killed process is dead, at most `limit`. Before the SIGKILL: until the next step is
  /// due, at most 1 ms.
  void wait(std::chrono::milliseconds limit);

  /// The number of processes found so far, dead or alive.
  std::size_t found() const { return found_; }
  std::vector<LeftProcess> left() const;
  /// Valid when step() has returned true: the bound was not reached, and the search has read every
  /// environment. Then every process that is not in left() is dead.
  bool complete() const { return complete_; }

 private:
  struct TreeProcess {
    UniqueFd fd;
    bool grouped = false;  ///< the control group's kill reaches it, even if we may not signal it
    int err = 0;
  };
  enum class KillPhase { kFreeze, kKill, kDone };

  std::size_t take_new(const ProcessMap& table);
  std::size_t take_marked(const ProcessMap& table);
  std::size_t kill_cgroup();
  bool add_member(pid_t pid);
  bool adopt_found(MarkedProcess found, const ProcessMap& table);
  bool search(const ProcessMap& table);
  bool may_be_marked(const ProcessInfo& info, const ProcessMap& table) const;
  void adopt(pid_t pid, UniqueFd fd, bool grouped);
  bool ended_meanwhile(const ProcessInfo& info);
  bool kept(const ProcessInfo& info) const;
  bool all_stopped(const ProcessMap& table) const;
  static void signal(pid_t pid, TreeProcess& member, int number);
  void drop_dead() {
    std::erase_if(members_, [](const auto& entry) { return has_ended(entry.second.fd.get()); });
  }

  TreeScope scope_;
  bool chosen_;  ///< only some of our children are killed
  Clock::time_point give_up_;
  Clock::time_point freeze_until_;
  KillPhase phase_ = KillPhase::kFreeze;
  bool crowded_ = false;  ///< no free descriptor for another process: kill the known ones
  std::size_t found_ = 0;
  std::map<pid_t, TreeProcess> members_;  ///< processes that have not ended
  std::set<pid_t> taken_;                 ///< all processes that ever were in members_
  std::map<pid_t, std::uint64_t> ended_;  ///< zombies that were not members: pid and start time
  std::set<pid_t> searched_;              ///< whose environment was read or is being read
  std::unique_ptr<MarkSearch> search_;    ///< the running search, if any
  bool search_again_ = true;              ///< no search was made yet, or the last one found a process
  bool complete_ = true;
};

inline constexpr std::chrono::milliseconds kKillBound{5000};

/// Kills in one blocking call; returns the processes that remain when all others are dead or `bound` is over.
/// Typically takes 1 to 5 ms, longer for processes that hold much memory or a GPU. A loop that must not block
/// passes a small bound and waits for their ends: all have got SIGKILL after the first milliseconds.
std::vector<LeftProcess> kill_own_tree(const TreeScope& scope = {},
                                       std::chrono::milliseconds bound = kKillBound);

/// Returns whether this process has descendants. Orphans are re-parented to a subreaper, so no child means no
/// descendant, and a pass over /proc is saved. A zombie child counts: reap first.
bool has_children();

/// Reaps orphans that were re-parented to us as their subreaper. `owned`: children that another component
/// reaps (ChildProcess). Never blocks. Returns the number of reaped processes.
std::size_t reap_adopted(std::span<const pid_t> owned);

}  // namespace ddp::launcher
