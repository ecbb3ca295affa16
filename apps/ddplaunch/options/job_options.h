#pragma once

#include <string>
#include <vector>

#include "apps/ddplaunch/options/diagnostics.h"
#include "apps/ddplaunch/options/option_groups.h"
#include "apps/ddplaunch/options/options.h"
#include "remote/hosts/host.h"

namespace ddp {

/// Applies what the surrounding scheduler says about hosts if no option names any. In a Slurm job the hosts
/// are the nodes of the job, started with srun. If srun starts one launcher per task, it reports an error: a
/// job on this machine alone would silently have the wrong world.
void heed_scheduler(const ProcessContext& context, OptionValues& values, Diagnostics& diagnostics);

/// Decides whether this ddplaunch runs in per-node mode, with one ddplaunch on each node. The options are
/// --node-rank, --master-addr, --rdzv-endpoint and --nnodes. If they are missing, variables of the scheduler
/// decide: NODE_RANK, MASTER_ADDR, MASTER_PORT; RANK and WORLD_SIZE of Kubeflow's pods; Slurm's variables if
/// srun has started one ddplaunch on each node. In this mode it fills per_node of `spec`, and the node
/// options of `values` that the scheduler gave. Call it before heed_scheduler and read_host_options.
void read_node_options(const ProcessContext& context, OptionValues& values, Verb verb,
                       launcher::JobSpec& spec, Diagnostics& diagnostics);

/// Fills hosts, max_nodes, nproc, oversubscribe and launcher of `spec`: --hostfile or --host, --include or
/// --exclude, --nnodes, --nproc-per-node against the slots, --launcher.
void read_host_options(const OptionValues& values, const ProcessContext& context, launcher::JobSpec& spec,
                       Diagnostics& diagnostics);

/// Reads --hosts-from `source`: "slurm" and "env" (a scheduler's variables), "-" (standard input) or the name
/// of a hostfile. Returns false if there are no usable hosts; `diagnostics` says where it searched.
bool read_hosts_from(const std::string& source, const ProcessContext& context,
                     std::vector<remote::Host>& hosts, Diagnostics& diagnostics);

/// Reads the options of --launcher daemon, and refuses options that only SSH can use. Call it after the hosts
/// and their wrappers.
void read_daemon_options(const OptionValues& values, const ProcessContext& context, launcher::JobSpec& spec,
                         Diagnostics& diagnostics);

/// Fills env, local_env and explicit_env of `spec`. The base is the forwarded part of the launcher's own
/// environment. Later sources override earlier ones: .deepspeed_env of the home directory, then of the
/// current directory, --env-file, --env.
void read_env_options(const OptionValues& values, const ProcessContext& context, launcher::JobSpec& spec,
                      Diagnostics& diagnostics);

/// Fills quiet and output of `spec`: the shown part of the workers' output, and the files that keep it.
void read_output_options(const OptionValues& values, const ProcessContext& context, launcher::JobSpec& spec,
                         Diagnostics& diagnostics);

}  // namespace ddp
