#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "remote/hosts/host.h"
#include "rendezvous/membership/rank_plan.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Ranks as "0,8-15": closed ranges, sorted, not touching. Empty: every rank.
using RankRanges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

/// torchrun's --redirects and --tee: the streams (bit 0: stdout, bit 1: stderr) of each local rank.
struct StreamChoice {
  std::uint8_t others = 0;               ///< of local ranks that are not listed
  std::map<int, std::uint8_t> by_local;  ///< of listed local ranks
  bool has(int local_rank, std::uint8_t stream) const {
    const auto found = by_local.find(local_rank);
    return ((found == by_local.end() ? others : found->second) >> (stream - 1) & 1) != 0;
  }
  bool any() const { return others != 0 || !by_local.empty(); }
  /// Returns the streams that are in either choice.
  friend StreamChoice operator|(const StreamChoice& one, const StreamChoice& other);
};

enum class Bars : std::uint8_t { kRank0, kNode, kAll, kOff };      ///< --bars
enum class ConsolePolicy : std::uint8_t { kAuto, kBlock, kDrop };  ///< --console

/// The user's options for the workers' output (docs/users/output.md).
struct OutputOptions {
  std::string label = "[{host}:{rank}] ";  ///< empty: none
  RankRanges show_ranks;                   ///< --show-ranks: other ranks go to the files only
  std::vector<int> local_ranks_filter;     ///< --local-ranks-filter, by local rank; empty: all
  StreamChoice redirects;                  ///< --redirects: to files in log_dir, not shown
  StreamChoice tee;                        ///< --tee: to files in log_dir, and shown
  std::string log_dir;                     ///< this run's, below --log-dir; empty: none
  std::string tensorboard;                 ///< the event file of --tensorboard, absolute; empty: none
  std::uint64_t log_max_size = 0;   ///< --log-max-size, bytes of one file before it is rotated; 0: no limit
  std::uint32_t log_max_parts = 0;  ///< parts of a rotated file to keep, the newest; 0: all
  bool jsonl = false;               ///< --jsonl: committed lines as JSON in the job directory
  bool fold = false;                ///< --fold: equal lines of many ranks become one
  Bars bars = Bars::kRank0;
  ConsolePolicy console = ConsolePolicy::kAuto;

  /// True if --show-ranks and --local-ranks-filter include this rank.
  bool selects(std::uint32_t rank, int local_rank) const;
  /// True if lines of this stream (1, 2) are shown; otherwise they go to the files only.
  bool shows(std::uint32_t rank, int local_rank, std::uint8_t stream) const;
  /// Returns the streams that are copied to log_dir.
  StreamChoice copied() const;
};

using rendezvous::StoreMode;
using rendezvous::WorkerCommand;

/// --fence: lost nodes whose lease an attempt with survivors waits for (docs/users/elastic.md).
enum class FenceMode : std::uint8_t { kRank0, kAll, kOff };
enum class LauncherKind : std::uint8_t { kSsh, kLocal, kSlurm, kDaemon, kJoin };

/// Per-node mode: a person or a scheduler starts one ddplaunch on each node, and all nodes connect to node
/// 0's. These are the options of this one (docs/users/per_node.md).
struct PerNode {
  static constexpr std::uint16_t kPort = 29500;  ///< as torchrun

  std::optional<int> rank;  ///< of this node; unset: determined at the start
  std::string master_addr;  ///< name or address of node 0, as seen by the other nodes
  std::uint16_t port = kPort;
  int nodes = 0;          ///< all nodes, including spares; at least 2
  std::string link_job;   ///< job name on the links, equal on all nodes
  bool insecure = false;  ///< no token is needed
  bool in_slurm = false;  ///< one srun has started all nodes, with one environment
};

/// As the report's path: the report goes to stdout, behind the workers' output.
inline constexpr std::string_view kReportToStdout = "-";

/// --on: a command of the user at an event of the job.
struct Hook {
  static constexpr std::array kEvents = {"start", "failure", "restart", "node-lost", "hang", "end"};
  std::string event;    ///< one of kEvents
  std::string command;  ///< for sh -c
};

/// --watch: what follows from a line of a worker's output that matches a pattern (docs/users/hang.md).
struct WatchRule {
  enum class Action : std::uint8_t { kReport, kHang, kFail };
  static constexpr std::array<const char*, 3> kActions{"report", "hang", "fail"};  ///< names, by Action
  std::string pattern;  ///< of LinePatterns, and valid
  Action action = Action::kReport;

  /// Returns "--watch 'REGEX=ACTION'", with a long pattern cut.
  std::string text() const;
};

/// One validated job: everything that the user asked for, and nothing discovered later. The options
/// (apps/ddplaunch) create it; all of launcher/ reads it.
struct JobSpec {
  std::string job_id;
  std::vector<remote::Host> hosts;  ///< in hostfile order; never empty
  int min_nodes = 0;          ///< --nnodes MIN:MAX: the job continues with this many; 0: all of max_nodes
  int max_nodes = 0;          ///< --nnodes; 0: all hosts but the spares
  int spares = 0;             ///< hosts beyond max_nodes that can replace a lost one
  bool scale_up_now = false;  ///< a node that joins a running attempt ends it, for a larger one
  FenceMode fence = FenceMode::kRank0;
  rendezvous::ProcsWanted nproc;
  WorkerCommand command;

  // Start
  LauncherKind launcher = LauncherKind::kSsh;
  std::optional<PerNode> per_node;       ///< kJoin: each node has its own ddplaunch
  std::string ssh_config;                ///< as in `ssh -F`; empty: the user's
  std::vector<std::string> ssh_command;  ///< --ssh-command split into words; empty: libssh
  bool ssh_localhost = false;
  bool accept_new_host_keys = false;
  std::string token_file;         ///< --token-file, absolute; empty: DDPLAUNCH_TOKEN, else the default
  std::uint16_t daemon_port = 0;  ///< of hosts without a port; 0: the default
  std::string agent_path;         ///< ddplaunchd on the nodes; empty: the path beside this ddplaunch
  bool push = true;               ///< copy an agent of this build to nodes without one; not with agent_path
  std::chrono::milliseconds start_timeout{120'000};
  std::string network;            ///< --network CIDR or interface name; empty: chosen
  std::uint16_t master_port = 0;  ///< the store's port; 0: any free one
  std::optional<std::pair<std::uint16_t, std::uint16_t>> port_range;
  StoreMode store = StoreMode::kAgent;
  std::vector<std::string> store_allow;  ///< further addresses and networks that may use the store

  // Workers
  std::vector<std::pair<std::string, std::string>> env;  ///< forwarded to other machines, already filtered
  std::vector<std::pair<std::string, std::string>> local_env;  ///< for this machine; keeps device variables
  std::vector<std::pair<std::string, std::string>> explicit_env;  ///< --env, --env-file: verbatim, on top
  std::vector<std::string> setup;                                 ///< shell scripts run before the workers
  std::string chdir;                                              ///< same path on all nodes
  bool chdir_given = false;  ///< by --chdir, not taken from the current directory
  bool stdin_to_rank0 = false;

  // Failure and output
  std::chrono::milliseconds stop_grace{25'000};     ///< after a user's signal
  std::chrono::milliseconds failure_grace{15'000};  ///< after a worker's failure
  bool stop_leaders = false;                        ///< --stop-signal-to leader
  std::chrono::milliseconds node_timeout{15'000};
  std::chrono::milliseconds master_timeout{0};       ///< 0: see node_lease
  int max_restarts = 0;                              ///< of the whole job, for any node or rank
  std::chrono::milliseconds restart_backoff{1'000};  ///< before the first restart; doubles to 60 s
  std::chrono::milliseconds hang_timeout{0};         ///< 0: no hang detection
  bool hang_by_steps = false;  ///< it holds only where all workers report steps (the default of elastic jobs)
  std::chrono::milliseconds report_stalls = std::chrono::minutes(10);  ///< 0: stalls are not reported
  bool no_diagnosis = false;  ///< Python workers get no hook (docs/users/hang.md)
  std::vector<WatchRule> watch;
  std::vector<Hook> hooks;
  std::string host_history;      ///< directory of the failures of hosts, absolute; empty: none
  std::string report_path;       ///< --report, absolute or kReportToStdout; empty: none
  std::string job_dir;           ///< absolute
  std::string fallback_job_dir;  ///< used when the user cannot write to job_dir; empty: --job-dir was given
  OutputOptions output;
  bool quiet = false;    ///< print errors only
  bool verbose = false;  ///< print each step
};

/// JobSpec::hang_timeout of a job that may restart, without --hang-timeout. A step or evaluation may take
/// minutes.
constexpr std::chrono::milliseconds kElasticHang = std::chrono::minutes(10);

/// Returns for how long a node may run workers without a word of the master. An outage of `node_timeout` must
/// not end them, and TCP may need twice that time until it has resent what was lost
/// (docs/decisions/0031-leases-outlast-retransmission.md).
inline std::chrono::milliseconds node_lease(const JobSpec& spec) {
  if (spec.master_timeout.count() > 0) return spec.master_timeout;
  return 2 * spec.node_timeout + std::chrono::seconds(5);
}

/// Returns how many hosts the job may use: its nodes and the spares, taken from the start of the list.
inline std::size_t hosts_used(const JobSpec& spec) {
  const auto wanted = static_cast<std::size_t>(spec.max_nodes) + static_cast<std::size_t>(spec.spares);
  return spec.max_nodes == 0 ? spec.hosts.size() : std::min(spec.hosts.size(), wanted);
}

/// Descriptors of the master that belong to no node: terminal, loops of the SSH threads, some of the job's
/// files.
inline constexpr std::size_t kReservedDescriptors = 64;
/// The same without SSH. Together with its node's share this is also what an agent needs (kFewestFiles of
/// ddplaunchd).
inline constexpr std::size_t kReservedLocally = 33;
/// Descriptors per node: both ends of its link and of its stderr, an SSH connection or a child, and a probe
/// while it is silent.
inline constexpr std::size_t kDescriptorsPerNode = 7;

/// Returns how many descriptors the master may have open at once. A node that connects by itself has one, its
/// TLS link.
inline std::size_t descriptors_needed(const JobSpec& spec) {
  const std::size_t each = spec.launcher == LauncherKind::kJoin ? 1 : kDescriptorsPerNode;
  const bool local = spec.launcher == LauncherKind::kLocal;
  return (local ? kReservedLocally : kReservedDescriptors) + each * hosts_used(spec);
}

/// Options of a node that was started by itself (per-node mode). As with torchrun, each node runs its own
/// command in its own environment. Sans-IO.
struct JoinJob {
  WorkerCommand command;
  std::string chdir;
  std::vector<std::pair<std::string, std::string>> explicit_env;  ///< --env, --env-file
  std::vector<std::string> setup;
  std::uint32_t workers = 0;  ///< 0: the number that the master plans
};

JoinJob join_job(const JobSpec& spec);

/// Returns the job as this node runs it. Command, directory, environment and setup are the node's own and
/// override the master's. From the master come only the names of job and node, times, credit, the
/// predecessor's PIDs, and whether rank 0 reads stdin.
rendezvous::JobStart lay_over(const rendezvous::JobStart& master, const JoinJob& own);

}  // namespace ddp::launcher
