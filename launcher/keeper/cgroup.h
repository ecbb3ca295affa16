#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

/// Returns the directory that shows the control group of a process. Empty if the hierarchy is not mounted, or
/// if no mount shows the group: the group was removed, or lies above the root of a container's namespace.
///
/// `mountinfo`, `self_cgroup`: the texts of /proc/PID/mountinfo (proc(5)) and /proc/PID/cgroup (cgroups(7))
/// of that process. `controller`: one of version 1, such as "freezer"; empty for the unified hierarchy of
/// version 2.
std::string find_cgroup(std::string_view mountinfo, std::string_view self_cgroup,
                        std::string_view controller);

/// The name of the group of one attempt, "ddplaunch.JOB.ATTEMPT.UNIQUE". Characters of the job id that could
/// have a meaning in a path become '_'. A long job id is cut.
std::string cgroup_name(std::string_view job_id, std::uint32_t attempt, std::uint64_t unique);
/// Returns whether `name` has the form that cgroup_name produces.
bool is_cgroup_name(std::string_view name);

/// The directories of this process's own control groups; empty where none is visible.
struct CgroupDirs {
  std::string v2;
  std::string freezer;  ///< of version 1
};

/// Reads the directories from /proc/self (find_cgroup). They are never guessed.
CgroupDirs own_cgroups();

/// A control group for the workers of one attempt, below our own group. Every process that they start stays
/// in the group and can be killed with it, even if it leaves their session, their parents or their
/// environment. No controller is enabled and no limit is changed.
///
/// An object locks its directory (flock). Therefore no agent, in any PID namespace, takes a group for stale
/// while the group's agent or keeper is alive. The destructor neither kills nor removes. One thread.
class Cgroup {
 public:
  /// Makes a group below our own: version 2 where the kernel has cgroup.kill (5.14), else version 1's
  /// freezer. Ends and removes the groups that dead agents left beside it. The error says why no group can be
  /// made, which is usual for users other than root.
  static Result<Cgroup> make(const CgroupDirs& own, std::string_view job_id, std::uint32_t attempt);
  /// Opens a group that another process has made. Error kRefused: the path is no group of ddplaunch.
  static Result<Cgroup> open(std::string path);

  const std::string& path() const { return path_; }
  /// For ChildSpec: the directory in which a child can be started (version 2), or -1.
  int directory() const { return v2_ ? directory_.get() : -1; }
  /// For ChildSpec: cgroup.procs, open for writing; -1 after `open`.
  int procs() const { return procs_.get(); }

  /// The live processes of this group and of groups below it, ascending. Zombies do not count.
  std::vector<pid_t> pids() const;

  /// Sends SIGKILL to all members, including processes that change their user or are being forked meanwhile.
  /// They die soon after. Version 2 takes one write. Version 1 freezes (at most 20 ms), kills and thaws; a
  /// process that was forked nevertheless is left to the next call.
  void kill() const;
  /// Removes the directory and the groups that workers made in it. Returns false while a process is in it. A
  /// process that has just ended counts for a moment longer, so removal is retried for as long as `patience`.
  bool remove(std::chrono::milliseconds patience = std::chrono::milliseconds(0));

 private:
  Cgroup() = default;
  static Result<Cgroup> make_in(const std::string& own, bool v2, std::string_view job_id,
                                std::uint32_t attempt);

  std::string path_;
  bool v2_ = false;
  UniqueFd directory_;
  UniqueFd procs_;
};

}  // namespace ddp::launcher
