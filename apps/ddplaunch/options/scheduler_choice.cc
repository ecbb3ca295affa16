#include "apps/ddplaunch/options/job_options.h"

#include <optional>
#include <string>

#include "base/parse_text.h"
#include "launcher/job/env_filter.h"

namespace ddp {
namespace {

using launcher::LauncherKind;

constexpr char kAlone[] = "; --launcher local runs on this machine only";

class Scheduler {
 public:
  explicit Scheduler(const ProcessContext& context) : env_(context.env) {}

  bool in_slurm() const { return has("SLURM_JOB_ID") && has("SLURM_JOB_NODELIST"); }
  std::string slurm_job() const { return value("SLURM_JOB_ID"); }

  /// srun started this process and others of the same step.
  bool one_of_a_slurm_step() const { return number("SLURM_STEP_NUM_TASKS") > 1; }

  std::string value(const char* name) const {
    const std::string* found = launcher::find_env(env_, name);
    return found == nullptr ? std::string() : *found;
  }

 private:
  bool has(const char* name) const { return !value(name).empty(); }
  unsigned long long number(const char* name) const {
    return whole_number(value(name), 100'000'000).value_or(0);
  }
  const launcher::EnvVars& env_;
};

}  // namespace

void heed_scheduler(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  const Scheduler scheduler(context);
  std::optional<LauncherKind>& chosen = options.written.launcher;
  if (chosen == LauncherKind::kSlurm && !scheduler.in_slurm()) {
    return diagnostics.fail(
        "--launcher slurm needs a Slurm job, but SLURM_JOB_ID or SLURM_JOB_NODELIST is not set; run salloc "
        "-N 2 ddplaunch …, or use a script for sbatch");
  }
  const bool none_listed = !options.lists_hosts();
  const bool ours = none_listed && (!chosen || chosen == LauncherKind::kSlurm);
  if (scheduler.in_slurm() && scheduler.one_of_a_slurm_step() && (ours || chosen == LauncherKind::kSlurm)) {
    return diagnostics.fail("srun has started " + scheduler.value("SLURM_STEP_NUM_TASKS") +
                            " of this program, but one ddplaunch starts all nodes: omit srun, or use srun "
                            "--ntasks=1; for one ddplaunch per node set MASTER_ADDR" +
                            kAlone);
  }
  if (!scheduler.in_slurm() || !none_listed || options.job.spec.ssh_localhost) return;
  if (ours || chosen == LauncherKind::kSsh) options.written.hosts_from = "slurm";
  if (chosen) return;
  chosen = LauncherKind::kSlurm;
  diagnostics.note("in Slurm job " + scheduler.slurm_job() + ": its nodes are started with srun" + kAlone);
}

}  // namespace ddp
