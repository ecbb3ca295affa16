#include "apps/ddplaunch/scheduler_choice.h"

#include <string>

#include "launcher/env_filter.h"
#include "remote/host_range.h"

namespace ddp {
namespace {

constexpr char kAlone[] = "; --launcher local runs on this machine alone";

class Scheduler {
 public:
  explicit Scheduler(const Surroundings& surroundings) : env_(surroundings.env) {}

  bool in_slurm() const { return has("SLURM_JOB_ID") && has("SLURM_JOB_NODELIST"); }
  std::string slurm_job() const { return value("SLURM_JOB_ID"); }

  /// srun has started this process, and others beside it.
  bool one_of_a_slurm_step() const { return number("SLURM_STEP_NUM_TASKS") > 1; }

  /// As Kubeflow's PyTorchJob has it: a rank for each pod, in variables of its own, in torchrun's, or in
  /// both. A process with a LOCAL_RANK, too, was started by a launcher, and what it hands on is stale.
  bool one_of_a_pod_each() const { return !has("LOCAL_RANK") && (has_pods() || has_torchrun_nodes()); }
  std::string pod_words() const {
    return has_pods() ? "RANK=" + value("RANK") + " and WORLD_SIZE=" + value("WORLD_SIZE")
                      : "PET_NODE_RANK=" + value("PET_NODE_RANK") + " and PET_NNODES=" + value("PET_NNODES");
  }
  std::string value(const char* name) const {
    const std::string* found = launcher::find_env(env_, name);
    return found == nullptr ? std::string() : *found;
  }

 private:
  bool has_pods() const {
    return number("WORLD_SIZE") > 1 && has("RANK") && has("MASTER_ADDR") && has("MASTER_PORT");
  }
  bool has_torchrun_nodes() const {
    return number("PET_NNODES") > 1 && has("PET_NODE_RANK") && has("PET_MASTER_ADDR");
  }
  bool has(const char* name) const { return !value(name).empty(); }
  unsigned long long number(const char* name) const {
    return remote::whole_number(value(name), 100'000'000).value_or(0);
  }
  const launcher::EnvVars& env_;
};

bool none_listed(const OptionValues& values) {
  return values.hostfile.empty() && values.host.empty() && values.hosts_from.empty();
}

}  // namespace

void heed_scheduler(const Surroundings& surroundings, OptionValues& values, Findings& findings) {
  const Scheduler scheduler(surroundings);
  if (values.launcher == "slurm" && !scheduler.in_slurm()) {
    return findings.fail(
        "--launcher slurm works inside a Slurm job, and SLURM_JOB_ID or SLURM_JOB_NODELIST is not set here; "
        "salloc -N 2 ddplaunch …, or write the line into a script for sbatch");
  }
  const bool ours = none_listed(values) && (values.launcher.empty() || values.launcher == "slurm");
  if (scheduler.in_slurm() && scheduler.one_of_a_slurm_step() && (ours || values.launcher == "slurm")) {
    return findings.fail("srun has started " + scheduler.value("SLURM_STEP_NUM_TASKS") +
                         " of this program; start it once, it starts the nodes itself: leave srun out, or "
                         "use srun --ntasks=1" +
                         kAlone);
  }
  if (scheduler.in_slurm() && ours && !values.ssh_localhost) {
    values.hosts_from = "slurm";
    if (values.launcher.empty()) {
      values.launcher = "slurm";
      findings.note("in Slurm job " + scheduler.slurm_job() + ": its nodes are started with srun" + kAlone);
    }
  } else if (scheduler.in_slurm() && values.launcher == "ssh" && none_listed(values) &&
             !values.ssh_localhost) {
    values.hosts_from = "slurm";
  }
}

std::string one_launcher_each(const Surroundings& surroundings, const OptionValues& values) {
  const Scheduler scheduler(surroundings);
  const bool others = !none_listed(values) || !values.launcher.empty() || scheduler.in_slurm();
  if (others || !scheduler.one_of_a_pod_each()) return {};
  return scheduler.pod_words() +
         " are set here, as Kubeflow and others set them for one launcher on each node, which is not in this "
         "release yet; start torchrun in such pods until it is, or one ddplaunch for all nodes where they "
         "run "
         "sshd (--hostfile FILE)" +
         kAlone;
}

}  // namespace ddp
