#include "apps/ddplaunch/options/job_options.h"

#include <optional>
#include <string>

#include "apps/ddplaunch/options/slurm_step.h"

namespace ddp {
namespace {

using launcher::LauncherKind;

constexpr char kAlone[] = "; --launcher local runs on this machine only";

/// Returns why several tasks of a step cannot each be a ddplaunch with these options.
std::string tasks_text(const SlurmStep& step, std::optional<LauncherKind> chosen) {
  std::string text = "srun has started " + std::to_string(step.tasks) + " copies of this program, but ";
  if (step.one_per_node() && !chosen)
    return text +
           "LOCAL_RANK is set, as in a worker of another launcher; unset it to run one ddplaunch per node";
  const std::string option = chosen == LauncherKind::kSsh ? "--launcher ssh" : "--launcher slurm";
  if (step.one_per_node())
    return text + "with " + option + " one ddplaunch starts all nodes: omit srun or " + option;
  return text +
         "one ddplaunch starts all nodes: omit srun, or use srun --ntasks-per-node=1 for one ddplaunch per "
         "node";
}

}  // namespace

void heed_scheduler(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  const SlurmStep step(context.env);
  std::optional<LauncherKind>& chosen = options.written.launcher;
  if (chosen == LauncherKind::kSlurm && !step.in_job()) {
    return diagnostics.fail(
        "--launcher slurm needs a Slurm job, but SLURM_JOB_ID or SLURM_JOB_NODELIST is not set; run salloc "
        "-N 2 ddplaunch …, or use a script for sbatch");
  }
  const std::string* mpi = launcher::find_env(context.env, "OMPI_COMM_WORLD_SIZE");
  if (mpi != nullptr && *mpi != "1") {
    diagnostics.note(
        "warning: mpirun has started " + *mpi +
        " copies of this program, and each starts a job of its own: omit mpirun, or give each its "
        "--node-rank and --master-addr (docs/users/per_node.md)");
  }
  const bool none_listed = !options.lists_hosts();
  const bool of_job =
      none_listed && (!chosen || chosen == LauncherKind::kSlurm || chosen == LauncherKind::kSsh);
  if (step.tasks > 1 && (of_job || chosen == LauncherKind::kSlurm))
    return diagnostics.fail(tasks_text(step, chosen) + kAlone);
  if (!step.in_job() || !none_listed || options.job.spec.ssh_localhost) return;
  const bool more_nodes = options.written.nnodes && options.written.nnodes->max > 1;
  if (!chosen && step.alone() && !more_nodes) {
    chosen = LauncherKind::kLocal;
    if (step.node_list == step.job_node_list) return;
    return diagnostics.note("srun has started one ddplaunch as Slurm step " + step.name() +
                            ": it runs on this machine only; --launcher slurm uses all nodes of the job");
  }
  if (of_job) options.written.hosts_from = "slurm";
  if (chosen) return;
  chosen = LauncherKind::kSlurm;
  diagnostics.note("in Slurm job " + step.job + ": its nodes are started with srun" + kAlone);
}

}  // namespace ddp
