#pragma once

#include <string>
#include <vector>

#include "apps/ddplaunch/options/diagnostics.h"
#include "apps/ddplaunch/options/option_groups.h"
#include "apps/ddplaunch/options/options.h"
#include "remote/hosts/host.h"

namespace ddp {

/// What a scheduler around this process says about hosts that no option names. In a Slurm job they are the
/// nodes of the job, started with srun. Where srun starts one launcher for each task, a job on this machine
/// alone would have the wrong world without a word: a mistake.
void heed_scheduler(const ProcessContext& context, OptionValues& values, Diagnostics& diagnostics);

/// Per-node mode: whether this ddplaunch is one of several, one on each node, by --node-rank, --master-addr,
/// --rdzv-endpoint and --nnodes, else by what the scheduler around it has set (NODE_RANK, MASTER_ADDR,
/// MASTER_PORT; RANK and WORLD_SIZE of Kubeflow's pods; Slurm's variables where srun has started one on each
/// node). Fills per_node of `spec` then, and the nodes of `values` that a scheduler told. Before
/// heed_scheduler and read_host_options.
void read_node_options(const ProcessContext& context, OptionValues& values, Verb verb,
                       launcher::JobSpec& spec, Diagnostics& diagnostics);

/// Fills hosts, max_nodes, nproc, oversubscribe and launcher of `spec`: --hostfile or --host, --include or
/// --exclude,
/// --nnodes, --nproc-per-node against the slots, --launcher.
void read_host_options(const OptionValues& values, const ProcessContext& context, launcher::JobSpec& spec,
                       Diagnostics& diagnostics);

/// --hosts-from `source`: "slurm" and "env" (what a scheduler put into the environment), "-" (standard input)
/// or the name of a hostfile. False: nothing usable was there, and `diagnostics` says what was looked for.
bool read_hosts_from(const std::string& source, const ProcessContext& context,
                     std::vector<remote::Host>& hosts, Diagnostics& diagnostics);

/// --launcher daemon: its port, and what has no meaning without SSH. After the hosts and their wrappers.
void read_daemon_options(const OptionValues& values, const ProcessContext& context, launcher::JobSpec& spec,
                         Diagnostics& diagnostics);

/// Fills env, local_env and explicit_env of `spec`: what is forwarded of the launcher's own environment, and
/// over it, later over earlier: .deepspeed_env of the home directory, of the current one, --env-file, --env.
void read_env_options(const OptionValues& values, const ProcessContext& context, launcher::JobSpec& spec,
                      Diagnostics& diagnostics);

/// Fills quiet and output of `spec`: what is shown of the workers' output, and what is kept where.
void read_output_options(const OptionValues& values, const ProcessContext& context, launcher::JobSpec& spec,
                         Diagnostics& diagnostics);

}  // namespace ddp
