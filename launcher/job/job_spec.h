#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/job/output_options.h"
#include "remote/hosts/host.h"

namespace ddp::launcher {

/// What a worker runs. argv[0] of kTrain is filled in by the agent, which knows where its own `train` lies.
struct WorkerCommand {
  enum class Kind : std::uint8_t {
    kProgram = 1,  ///< argv as it is, argv[0] searched in the worker's PATH
    kPython = 2,   ///< argv after `python3 -u`
    kModule = 3,   ///< argv after `python3 -u -m`
    kTrain = 4,    ///< the bundled trainer; argv holds its arguments only
  };
  Kind kind = Kind::kProgram;
  std::vector<std::string> argv;
  std::string python;  ///< interpreter for kPython and kModule; empty: python3 from the worker's PATH
};

/// --nproc-per-node: a number, or what each node counts for itself.
struct ProcsPerNode {
  enum class Kind : std::uint8_t { kUnset, kNumber, kAuto, kGpu, kCpu };
  Kind kind = Kind::kUnset;
  int number = 0;
};

enum class StoreMode : std::uint8_t {
  kAgent = 1,
  kWorker = 2
};  ///< who serves MASTER_PORT (docs/environment.md)
/// --fence: the lease of which lost nodes an attempt with survivors waits for (docs/elastic.md).
enum class FenceMode : std::uint8_t { kRank0, kAll, kOff };
enum class LauncherKind : std::uint8_t { kSsh, kLocal, kSlurm, kDaemon, kJoin };

/// Per-node mode: one ddplaunch is started on each node, by a person or a scheduler, and the nodes meet at
/// node 0's. What this one was told (docs/per_node.md).
struct PerNode {
  static constexpr std::uint16_t kPort = 29500;  ///< as torchrun

  std::optional<int> rank;  ///< of this node; unset: it is found out
  std::string master_addr;  ///< where node 0 is, as the other nodes know it: a name or an address
  std::uint16_t port = kPort;
  int nodes = 0;          ///< all, spares included; at least 2
  std::string link_job;   ///< the job's name on the links: the same on all nodes
  bool insecure = false;  ///< no token is needed
};

/// One validated job: everything the user asked for, nothing that was found out later. Made by the options
/// (apps/ddplaunch) and read by all of launcher/.
struct JobSpec {
  std::string job_id;
  std::vector<remote::Host> hosts;  ///< in hostfile order; never empty
  int min_nodes = 0;  ///< --nnodes MIN:MAX: the job goes on with so many; 0: only with all of max_nodes
  int max_nodes = 0;  ///< --nnodes; 0: all hosts but the spares
  int spares = 0;     ///< hosts beyond max_nodes that wait to take the place of a lost one
  bool scale_up_now = false;  ///< a node that joins while an attempt runs ends it, for a larger one
  FenceMode fence = FenceMode::kRank0;
  ProcsPerNode nproc;
  bool oversubscribe = false;
  WorkerCommand command;

  // Start
  LauncherKind launcher = LauncherKind::kSsh;
  std::optional<PerNode> per_node;       ///< kJoin: each node has a ddplaunch of its own
  std::string ssh_config;                ///< as `ssh -F`; empty: the user's
  std::vector<std::string> ssh_command;  ///< --ssh-command split into words; empty: libssh
  bool ssh_localhost = false;
  bool accept_new_host_keys = false;
  std::string token_file;         ///< --token-file, absolute; empty: DDPLAUNCH_TOKEN, else the usual one
  std::uint16_t daemon_port = 0;  ///< of hosts without a port; 0: the usual one
  std::string agent_path;         ///< ddplaunchd on the nodes; empty: the path beside this ddplaunch
  bool push = true;  ///< nodes without an agent of this build are given one; not with an agent_path
  std::chrono::milliseconds start_timeout{120'000};
  std::string network;            ///< --network CIDR or interface name; empty: chosen
  std::uint16_t master_port = 0;  ///< the store's port; 0: any free one
  std::optional<std::pair<std::uint16_t, std::uint16_t>> port_range;
  StoreMode store = StoreMode::kAgent;
  std::vector<std::string>
      store_allow;  ///< addresses and networks beside the nodes' own that may use the store

  // Workers
  std::vector<std::pair<std::string, std::string>> env;  ///< forwarded to other machines, already filtered
  std::vector<std::pair<std::string, std::string>>
      local_env;  ///< the same for this machine: device variables kept
  std::vector<std::pair<std::string, std::string>>
      explicit_env;                ///< --env, --env-file: verbatim, over everything
  std::vector<std::string> setup;  ///< shell scripts that each node runs before its workers
  std::string chdir;               ///< same path on all nodes
  bool chdir_given = false;        ///< by --chdir, not taken from the current directory
  bool stdin_to_rank0 = false;

  // Failure and output
  std::chrono::milliseconds stop_grace{25'000};     ///< after a user's signal
  std::chrono::milliseconds failure_grace{15'000};  ///< after a worker's failure
  std::chrono::milliseconds node_timeout{15'000};
  std::chrono::milliseconds master_timeout{15'000};
  int max_restarts = 0;  ///< of the whole job, whichever node or rank failed
  std::chrono::milliseconds restart_backoff{
      1'000};  ///< before the first restart; doubles each time, to 60 s at most
  std::chrono::milliseconds hang_timeout{0};  ///< 0: nobody watches for hangs
  std::string report_path;                    ///< --report, absolute; empty: none
  std::string job_dir;                        ///< absolute
  OutputOptions output;
  bool quiet = false;    ///< no words of ours but errors
  bool verbose = false;  ///< say each step
};

/// How many of the hosts the job may use, the first of them: its nodes and the spares.
inline std::size_t hosts_used(const JobSpec& spec) {
  const auto wanted = static_cast<std::size_t>(spec.max_nodes) + static_cast<std::size_t>(spec.spares);
  return spec.max_nodes == 0 ? spec.hosts.size() : std::min(spec.hosts.size(), wanted);
}

/// Descriptors of the master that belong to no node: terminal, loops of the SSH threads, a few of the job's
/// files.
inline constexpr std::size_t kReservedDescriptors = 64;
/// The same without SSH. With its node that is what an agent needs, too (kFewestFiles of ddplaunchd).
inline constexpr std::size_t kReservedLocally = 34;
/// Of a node: both ends of its link and of its stderr, and an SSH connection or a child.
inline constexpr std::size_t kDescriptorsPerNode = 6;

/// How many descriptors the master of this job may have open at once. A node that comes by itself has one,
/// its TLS link.
inline std::size_t descriptors_needed(const JobSpec& spec) {
  const std::size_t each = spec.launcher == LauncherKind::kJoin ? 1 : kDescriptorsPerNode;
  const bool local = spec.launcher == LauncherKind::kLocal;
  return (local ? kReservedLocally : kReservedDescriptors) + each * hosts_used(spec);
}

}  // namespace ddp::launcher
