#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "remote/hosts/diagnostic.h"
#include "remote/hosts/host.h"

namespace ddp::remote {

/// Hosts as schedulers name them, in their order, which is the order of the ranks (sans-IO). Everywhere: when
/// each host has a count of 1, that is one launcher a node, and no host has slots: --nproc-per-node, or its
/// GPUs, say how many workers it gets.

/// What Slurm tells a job, as written; empty: not set. Each text stands for the variable of its name.
struct SlurmVariables {
  std::string job_nodelist;    ///< SLURM_JOB_NODELIST: "gpu[01-03,07],login"
  std::string tasks_per_node;  ///< SLURM_TASKS_PER_NODE: "2(x3),1"
  std::string gpus_per_node;   ///< SLURM_GPUS_PER_NODE: "8", "a100:8"
  std::string gpus_on_node;    ///< SLURM_GPUS_ON_NODE: of the node that the variables were read on
};
/// Slots are the tasks of a node; where each node has one task, its GPUs; where they are not told, none.
Validated<std::vector<Host>> slurm_hosts(const SlurmVariables& variables);

/// "gpu[01-03,07],login[1-2]n[1-4]" in full. Mistakes carry `variable` and a column.
Validated<std::vector<std::string>> expand_node_list(std::string_view text, const std::string& variable);
/// "2(x3),1" → 2 2 2 1. Mistakes carry `variable`.
Validated<std::vector<int>> expand_counts(std::string_view text, const std::string& variable);

/// A host a line, as often as it has slots: PBS_NODEFILE, LSB_DJOB_HOSTFILE, COBALT_NODEFILE. What follows
/// the host on a line is skipped. `file` is for messages.
Validated<std::vector<Host>> repeated_hosts(std::string_view text, const std::string& file);
/// Words instead of lines: LSB_HOSTS.
Validated<std::vector<Host>> parse_repeated_hosts(std::string_view text, const std::string& variable);
/// "hostA 4 hostB 8": LSB_MCPU_HOSTS.
Validated<std::vector<Host>> parse_host_counts(std::string_view text, const std::string& variable);
/// "hostA 4 all.q@hostA UNDEFINED", a host a line: PE_HOSTFILE of SGE. Queues of one host add up.
Validated<std::vector<Host>> grid_engine_hosts(std::string_view text, const std::string& file);

}  // namespace ddp::remote
