#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/ddplaunch/options/options.h"
#include "base/result.h"

namespace ddp {

/// The job step in which srun has started this process, as Slurm's variables describe it. Nothing is checked
/// here except by the functions that return an error or nullopt.
struct SlurmStep {
  static constexpr unsigned kFirstPort = 20000;
  static constexpr unsigned kPorts = 8000;  ///< up to 27999: below torchrun's ports and the ephemeral ones

  explicit SlurmStep(const ProcessContext& context);

  bool in_job() const { return !job.empty() && !job_node_list.empty(); }
  /// Returns whether srun has started several tasks, one on each node.
  bool one_per_node() const { return tasks > 1 && tasks == nodes; }
  /// Returns whether srun has started this process alone, and not for a person who types (--pty).
  bool alone() const { return tasks == 1 && tasks_per_node == "1" && !terminal; }
  /// Returns "7.0", the job and the step as squeue and sacct name them.
  std::string name() const { return job + '.' + id; }
  /// Returns SLURM_NODEID. nullopt: it is not a number, or not below `nodes`.
  std::optional<int> node_rank() const;
  /// Returns the name of the step's first node. Errors (kUsage): the list is missing, unreadable or of
  /// another step.
  Result<std::string> first_node() const;
  /// Returns the port where the step's nodes meet, between kFirstPort and kFirstPort + kPorts. Neighboring
  /// jobs (of an array) and neighboring steps of one job have different ports. nullopt: job or step is
  /// unknown.
  std::optional<std::uint16_t> port() const;

  std::string job;               ///< SLURM_JOB_ID
  std::string id;                ///< SLURM_STEP_ID
  unsigned long long tasks = 0;  ///< 0: srun has not started this process
  unsigned long long nodes = 0;
  /// SLURM_TASKS_PER_NODE. In a step it is that of the step. In a batch script it is that of the job, also
  /// where sbatch was called in a step and the variables SLURM_STEP_… are still those of that step.
  std::string tasks_per_node;
  std::string node_id;        ///< SLURM_NODEID
  std::string node_list;      ///< SLURM_STEP_NODELIST, else SLURM_JOB_NODELIST
  std::string job_node_list;  ///< SLURM_JOB_NODELIST
  std::string node_name;      ///< SLURMD_NODENAME: this node's name in `node_list`
  bool terminal = false;      ///< srun --pty: a person types here
};

}  // namespace ddp
