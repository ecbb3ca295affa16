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

/// The directory that shows the control group which a process lives in, or empty: that hierarchy is not
/// mounted here, or no mount shows the group (it lies above the root of a container's namespace, or was
/// removed).
///
/// `mountinfo`, `self_cgroup`: the texts of /proc/PID/mountinfo (proc(5)) and /proc/PID/cgroup (cgroups(7))
/// of that process. `controller`: of version 1, such as "freezer"; empty for the unified hierarchy of version
/// 2.
std::string find_cgroup(std::string_view mountinfo, std::string_view self_cgroup,
                        std::string_view controller);

/// The name of the group of one attempt, "ddplaunch.JOB.ATTEMPT.UNIQUE". Characters of the job id that could
/// have a meaning in a path become '_'; a long one is cut.
std::string cgroup_name(std::string_view job_id, std::uint32_t attempt, std::uint64_t unique);
/// Whether cgroup_name could have made it.
bool is_cgroup_name(std::string_view name);

/// Where our own control groups are to be seen; empty: nowhere.
struct CgroupDirs {
  std::string v2;
  std::string freezer;  ///< of version 1
};

/// What /proc says of us (find_cgroup). Nothing is guessed: who has neither gets two empty strings.
CgroupDirs own_cgroups();

/// A control group for the workers of one attempt, below our own one: whatever they start stays in it, also
/// what leaves their session, their parents and their environment, so that all of it can be killed at once.
/// No controller is enabled and no limit is touched.
///
/// While an object lives, its directory is locked (flock); so nobody takes a group for stale whose agent or
/// keeper lives, in whatever PID namespace. Destroying it neither kills nor removes: that is said. One
/// thread.
class Cgroup {
 public:
  /// Makes one below our own group: of version 2 where the kernel has cgroup.kill (5.14), else of version 1's
  /// freezer. Ends and removes those that dead agents left beside it. Error: why it cannot be, which is usual
  /// for who is not root.
  static Result<Cgroup> make(const CgroupDirs& own, std::string_view job_id, std::uint32_t attempt);
  /// One that another process has made. Error kRefused: that is no directory of ours.
  static Result<Cgroup> open(std::string path);

  const std::string& path() const { return path_; }
  /// For ChildSpec: its directory, into which a child can be born (version 2), or -1.
  int directory() const { return v2_ ? directory_.get() : -1; }
  /// For ChildSpec: cgroup.procs, open for writing; -1 after `open`.
  int procs() const { return procs_.get(); }

  /// The living processes in it and in groups below it, ascending. Zombies do not count.
  std::vector<pid_t> pids() const;

  /// SIGKILL to all in it, also to those that change their user meanwhile or are being forked; they die of it
  /// soon after. Version 2: one write. Version 1: freezes (at most 20 ms), kills, thaws; who was forked all
  /// the same is left to the next call.
  void kill() const;
  /// Removes the directory and those that the workers made in it. False: somebody is still in it. A process
  /// that has just ended counts for a moment longer, so it is tried again for as long as `patience`.
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
