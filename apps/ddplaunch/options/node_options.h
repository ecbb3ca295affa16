#pragma once

#include "apps/ddplaunch/options/findings.h"
#include "apps/ddplaunch/options/option_groups.h"
#include "apps/ddplaunch/options/options.h"

namespace ddp {

/// Per-node mode: whether this ddplaunch is one of several, one on each node, by --node-rank, --master-addr,
/// --rdzv-endpoint and --nnodes, else by what the scheduler around it has set (NODE_RANK, MASTER_ADDR,
/// MASTER_PORT; RANK and WORLD_SIZE of Kubeflow's pods; Slurm's variables where srun has started one on each
/// node). Fills per_node of `spec` then, and the nodes of `values` that a scheduler told. Before
/// heed_scheduler and read_host_options.
void read_node_options(const Surroundings& surroundings, OptionValues& values, Verb verb,
                       launcher::JobSpec& spec, Findings& findings);

}  // namespace ddp
