#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/options/option_readers.h"
#include "apps/ddplaunch/options/option_sources.h"
#include "apps/ddplaunch/options/options.h"
#include "apps/options/option_table.h"
#include "base/result.h"

namespace ddp {

inline constexpr int kElasticRestarts = 3;  ///< default of --max-restarts for a job that can lose a node

/// Values of options that files, a scheduler's variables or other options complete before they go into the
/// job. A scheduler's variables fill those that are not given.
struct WrittenValues {
  std::string hostfile;
  std::vector<std::string> host;
  std::string hosts_from;
  std::string include;
  std::string exclude;
  std::optional<NodeCounts> nnodes;
  std::optional<long long> ntasks;  ///< -n: workers on all nodes together
  std::optional<launcher::LauncherKind> launcher;
  std::optional<int> node_rank;
  std::string master_addr;
  std::optional<RendezvousEndpoint> rdzv_endpoint;
  std::optional<std::uint16_t> master_port;
  std::vector<std::string> env;
  std::vector<std::string> env_file;
  std::vector<std::string> wrapper;
  std::optional<bool> stdin_to_rank0;
  std::string accelerate_config;
  std::string job_file;
  std::string host_history;  ///< absolute; "none"; empty: the user's own
  bool avoid_bad_hosts = false;
};

/// The options of one command line. The table declares each option once, with its field in `job` or
/// `written`. The functions below apply the rules between options; each reads and fills `job.spec`.
struct JobOptions {
  /// Relative paths are resolved against `cwd`.
  explicit JobOptions(const std::string& cwd);

  bool given(std::string_view name) const { return table.given(name); }
  /// Returns a message for each rule that the options break. The user's settings hold for jobs of all kinds:
  /// there, an option that merely has no effect on this job is no error. Call it when the verb, the launcher
  /// and per_node are known.
  std::vector<std::string> broken_rules() const;
  /// Returns whether an option or a scheduler lists the hosts.
  bool lists_hosts() const { return given("--hostfile") || given("--host") || !written.hosts_from.empty(); }

  RunJob job;
  WrittenValues written;
  AccelerateConfig config;  ///< of --accelerate-config
  OptionTable table;
  CommandLine line;      ///< its worker is that of the job file if the arguments have none
  OptionSource sources;  ///< the options that count, with their origins
};

/// Reads all sources of options (choose_options), and fills the table with those that count.
void read_sources(const std::vector<std::string>& args, const ProcessContext& context, JobOptions& options,
                  Diagnostics& diagnostics);

/// Applies what the surrounding scheduler says about hosts if no option names any. In a Slurm job the hosts
/// are the nodes of the job, started with srun. A step of one task runs on its own node, unless a person
/// types in it (srun --pty) or --nnodes asks for more. If srun starts one launcher per task, it reports an
/// error: a job on this machine alone would silently have the wrong world.
void read_scheduler(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics);

/// Decides whether this ddplaunch runs in per-node mode, with one ddplaunch on each node. The options are
/// --node-rank, --master-addr, --rdzv-endpoint and --nnodes. If they are missing, variables of the scheduler
/// decide: NODE_RANK, MASTER_ADDR, MASTER_PORT; RANK and WORLD_SIZE of Kubeflow's pods; Slurm's variables if
/// srun has started one ddplaunch on each node (SlurmStep). In this mode it fills per_node, and the node
/// options that the scheduler gave. Call it before read_scheduler and read_host_options. Returns false if an
/// error leaves the nodes unknown.
bool read_node_options(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics);

/// Fills hosts, max_nodes and launcher: --hostfile, --host or --hosts-from (a scheduler's variables, standard
/// input), --include or --exclude, --nnodes, --nproc-per-node against the slots, --launcher.
void read_host_options(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics);

/// Fills host_history and what it says about the hosts. With --avoid-bad-hosts, bad hosts go to the end of
/// the list if the job leaves hosts out or keeps spares. Call it when the hosts are known, and before they
/// are counted.
void read_host_history(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics);

/// Notes the hosts of a job that failed lately, and with --avoid-bad-hosts where they stand. Call it when the
/// number of nodes is known.
void note_host_history(const JobOptions& options, Diagnostics& diagnostics);

/// Refuses hosts that only SSH can reach as they ask for, with --launcher daemon. Call it after the hosts and
/// their wrappers.
void check_daemon_hosts(launcher::JobSpec& spec, Diagnostics& diagnostics);

/// Fills env, local_env and explicit_env. The base is the forwarded part of the launcher's own environment.
/// Later sources override earlier ones: .deepspeed_env of the home directory, then of the current directory,
/// --env-file, --env.
void read_env_options(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics);

/// Returns a directory of ddplaunch for this user, such as ~/.local/state/ddplaunch. `variable`
/// ("XDG_STATE_HOME") names its parent, else it is `below_home` (".local/state") of HOME. Empty: both are
/// missing.
std::string xdg_directory(const ProcessContext& context, const char* variable, const char* below_home);

/// Checks the options about the workers' output against each other.
void check_output_options(JobOptions& options, Diagnostics& diagnostics);

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
