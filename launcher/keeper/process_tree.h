#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/keeper/process_table.h"

namespace ddp::launcher {

/// comm of a keeper: what stands below one belongs to it, whatever its environment says.
inline constexpr std::string_view kKeeperName = "ddp-keeper";

class Cgroup;
class MarkSearch;
struct MarkedProcess;

/// What a kill reaches: every descendant of the calling process, every member of the control group, and with
/// a job id also processes elsewhere that carry the job's mark. A mark is DDPLAUNCH_JOB_ID=<job_id> together
/// with any LOCAL_RANK in the environment that the process was executed with, as all workers have it. Never
/// reached: ourselves, our ancestors, what another keeper has below it (another node of the job on this
/// machine, another job), processes of another effective uid outside our tree.
struct TreeScope {
  std::string job_id;       ///< empty: descendants only
  std::vector<pid_t> keep;  ///< children to be left alone, with all below them; not in the control group
  std::shared_ptr<Cgroup> cgroup{};  ///< of the attempt; empty: it has none
};

/// A process, and the pidfd by which it is signalled: another process may have its number by now.
struct KnownProcess {
  pid_t pid = 0;
  UniqueFd pidfd;
};

/// A process that a kill could not end. Zombies are not left: they hold nothing but a number.
struct LeftProcess {
  pid_t pid = 0;
  uid_t uid = 0;
  char state = '?';
  std::string comm;
  int err =
      0;  ///< why it could not be signalled (EPERM: it runs as another user), or 0: it was, and does not end

  std::string text() const;  ///< "4242 (python3, state D, uid 1000)"
};

/// Ends a whole tree although it forks meanwhile: stops every process (SIGSTOP) until a pass finds nothing
/// new, then kills all (SIGKILL), again until nothing new is found. What is in the control group dies first,
/// by one order to the kernel. Who carries the mark elsewhere is searched for last, when all these have got
/// their KILL (MarkSearch); then the same begins with what was found. A process is known by a pidfd that was
/// opened before its parent was looked at, so a reused number is never hit. The caller must be a subreaper,
/// or orphans are out of its reach. Reaps nothing: the dead children are the business of whoever owns them.
/// One thread.
///
/// To use it in an event loop: call step() until it says true, with wait() or a timer of a few ms between.
class TreeKill {
 public:
  using Clock = std::chrono::steady_clock;

  /// Gives up after `bound`. `only`: of our children only these, with all below them; unset: all.
  TreeKill(TreeScope scope, std::chrono::milliseconds bound,
           std::optional<std::vector<KnownProcess>> only = {});
  TreeKill(TreeKill&&) noexcept;
  ~TreeKill();

  /// One pass over /proc, 10 to 20 µs for each process of the machine. True: all are dead, or the bound is
  /// reached.
  bool step();

  /// Blocks until every process that was killed is dead, at most `limit`. Before the KILL: until it is worth
  /// to look again, at most 1 ms.
  void wait(std::chrono::milliseconds limit);

  /// Processes found so far, dead or alive.
  std::size_t found() const { return found_; }
  std::vector<LeftProcess> left() const;
  /// Once step() has said true: the bound was not reached, and the search has read every environment. Then
  /// what is not in left() is dead.
  bool complete() const { return complete_; }

 private:
  struct TreeProcess {
    UniqueFd pidfd;
    bool grouped = false;  ///< the group's kill reaches it, whether we may signal it or not
    int err = 0;
  };
  enum class KillPhase { kFreeze, kKill, kDone };
  using Table = std::map<pid_t, ProcessInfo>;

  std::size_t take_new(const Table& table);
  std::size_t take_marked(const Table& table);
  std::size_t kill_cgroup();
  bool take(pid_t pid);
  bool adopt_found(MarkedProcess found, const Table& table);
  bool search(const Table& table);
  bool may_be_marked(const ProcessInfo& info, const Table& table) const;
  void adopt(pid_t pid, UniqueFd pidfd, bool grouped);
  bool ended_meanwhile(const ProcessInfo& info);
  bool kept(const ProcessInfo& info) const;
  bool all_stopped(const Table& table) const;
  static void signal(TreeProcess& member, int number);
  void drop_dead();

  TreeScope scope_;
  bool chosen_;  ///< of our children only the members
  Clock::time_point give_up_;
  Clock::time_point freeze_until_;
  KillPhase phase_ = KillPhase::kFreeze;
  bool crowded_ = false;  ///< no descriptor was free for one more: kill those at hand first
  std::size_t found_ = 0;
  std::map<pid_t, TreeProcess> members_;  ///< that have not ended
  std::set<pid_t> taken_;                 ///< those and the dead ones that were among them
  std::map<pid_t, std::uint64_t> ended_;  ///< zombies of others: pid and start time
  std::set<pid_t> searched_;              ///< their environment is read, or was
  std::unique_ptr<MarkSearch> search_;    ///< one that is under way
  bool search_again_ = true;              ///< none yet, or the last one found somebody
  bool complete_ = true;
};

inline constexpr std::chrono::milliseconds kKillBound{5000};

/// The same in one blocking call: returns when all are dead or after `bound`, with what is left. Typically 1
/// to 5 ms; processes that hold much memory or a GPU take longer to die, so a loop that may not stand still
/// passes a small bound (all have got their KILL after the first milliseconds) and waits for their pidfds.
std::vector<LeftProcess> kill_own_tree(const TreeScope& scope = {},
                                       std::chrono::milliseconds bound = kKillBound);

/// Whether anybody descends from us. Orphans of a subreaper's tree come to it, so without a child there is no
/// descendant, and a look at the whole of /proc can be saved. A zombie child counts: reap first.
bool has_children();

/// Reaps orphans that came to us as their subreaper. `owned`: children that somebody else waits for
/// (ChildProcess). Never blocks. Returns how many.
std::size_t reap_adopted(std::span<const pid_t> owned);

}  // namespace ddp::launcher
