#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/check/check_diagnosis.h"
#include "launcher/job/job_spec.h"
#include "launcher/job/worker_env.h"

namespace ddp::launcher {

/// What the scheduler of the master's job does at its end. All values of no scheduler are unset.
struct SchedulerLimits {
  std::string name;                                     ///< "Slurm"; empty: none is known
  std::optional<std::chrono::milliseconds> left;        ///< until it ends the job
  std::optional<std::chrono::milliseconds> kill_after;  ///< from its SIGTERM to its SIGKILL, by default
};

/// Returns what the variables of the scheduler say. `now` is the time since 1970.
SchedulerLimits scheduler_limits(const EnvVars& env, std::chrono::milliseconds now);

/// Returns the job's time limits, the shortest first and those without an end last (docs/users/timeouts.md).
std::vector<TimeLimit> time_limits(const JobSpec& spec, const SchedulerLimits& scheduler);

/// Returns a warning for each limit that undercuts another one, so that the latter never acts, or acts too
/// late.
std::vector<CheckDiagnostic> time_limit_diagnostics(const JobSpec& spec, const SchedulerLimits& scheduler);

}  // namespace ddp::launcher
