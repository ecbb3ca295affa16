#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace ddp::launcher
