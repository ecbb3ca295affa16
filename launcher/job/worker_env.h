#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// An environment as data, in order: names without '=', values of any bytes but NUL. Each name occurs once.
using EnvVars = std::vector<std::pair<std::string, std::string>>;

/// The reason why a variable of one machine is not valid on another one (docs/users/environment.md has the
/// table).
enum class EnvClass {
  kFree,      ///< forwarded
  kSession,   ///< identity, terminal, login session, temporary directories: each node's own
  kLoader,    ///< LD_PRELOAD, LD_AUDIT: each node's own
  kDevice,    ///< device masks: each node's own, so kept on the master's own machine
  kNetwork,   ///< interface and adapter names: each node's own
  kCluster,   ///< addresses that Kubernetes injects: each node's own
  kShell,     ///< options of a shell, which every bash under it takes over: no worker gets them
  kForeign,   ///< rank facts of other launchers (SLURM_*, OMPI_*, PMI_* …): no worker gets them
  kRankFact,  ///< stale RANK, MASTER_ADDR, TORCHELASTIC_* …: no worker gets them
  kOurs,      ///< DDPLAUNCH_*: no worker inherits them
};
EnvClass env_class(std::string_view name);

/// One row of the deny list: globs separated by spaces, '*' is any text. If globs overlap, earlier rows win.
struct DenyRow {
  EnvClass why;
  std::string_view globs;
};
std::span<const DenyRow> deny_table();

/// Converts "NAME=VALUE" strings, as in environ, to EnvVars. Ignores entries without '=' or with an empty
/// name. The first entry of a repeated name counts, as in getenv.
EnvVars split_env(std::span<const std::string> entries);
/// Does the reverse.
std::vector<std::string> env_entries(const EnvVars& vars);

/// Returns what the master sends to a node: every kFree variable of its own environment. If the node is the
/// master's own machine (`local`), it includes the device variables.
EnvVars forwarded_env(const EnvVars& own, bool local = false);

/// Parses `--env NAME=VALUE` and `--env NAME` (taken from `own`), which override the deny list. Returns all
/// errors at once (kUsage): an empty name, a NUL byte, or a NAME that is not set. A later word overrides an
/// earlier one.
Result<EnvVars> explicit_env(const EnvVars& own, const std::vector<std::string>& words);

/// Returns the names in `vars` that are bound to one node's hardware (kNetwork, kDevice). If --env sends them
/// to all nodes, the user gets one warning.
std::vector<std::string> node_bound_names(const EnvVars& vars);

/// Returns the base environment of the workers of one node: the node's own (without kShell, kForeign,
/// kRankFact, kOurs), overlaid by `forwarded`, overlaid by `explicit_vars` (--env and the hostfile's
/// env:NAME=VALUE, verbatim). PATH is the forwarded one plus the node's entries that it lacks; an explicit
/// PATH is not changed. worker_env() adds a worker's own variables on top.
EnvVars merge_env(const EnvVars& node_env, const EnvVars& forwarded, const EnvVars& explicit_vars);

/// Sets `name`, replacing an existing value.
void set_env(EnvVars& vars, std::string_view name, std::string_view value);
/// Returns the value, or nullptr. The pointer is valid until `vars` changes.
const std::string* find_env(const EnvVars& vars, std::string_view name);

/// Returns the directories of PATH as find_program takes them.
std::optional<std::string_view> path_in(const EnvVars& vars);

/// Returns the list for no_proxy and NO_PROXY if `vars` has a proxy: the existing list plus `addresses`. It
/// keeps gRPC and HTTP between the nodes off the proxy. Unset when there is no proxy.
std::optional<std::string> no_proxy_list(const EnvVars& vars, const std::vector<std::string>& addresses);

/// Returns directories that the environment refers to: VIRTUAL_ENV, CONDA_PREFIX, PYTHONHOME. The agent
/// checks that they exist; otherwise it refuses with the host's name and the path.
EnvVars promised_directories(const EnvVars& vars);

inline constexpr std::size_t kMaxEnvString = 128 * 1024;       ///< Linux MAX_ARG_STRLEN, "NAME=VALUE" and NUL
inline constexpr std::size_t kMaxExecTotal = 2 * 1024 * 1024;  ///< a quarter of the usual 8 MiB stack limit
inline constexpr std::size_t kMostExecTotal = 6 * 1024 * 1024;  ///< Linux passes no more with any stack limit

/// Checks before the spawn whether execve accepts this. Error (`code`): the variable or argument that is too
/// long, or the largest variables if the total is too large. Errors have names only, never values.
Result<> check_exec_size(const EnvVars& vars, std::span<const std::string> argv,
                         ErrorCode code = ErrorCode::kRefused, std::size_t total_limit = kMaxExecTotal);

/// The sockets of one worker process (docs/developers/worker_protocol.md).
struct WorkerSockets {
  std::string control;  ///< value of DDPLAUNCH_CONTROL; empty: none could be made
  std::string metrics;  ///< value of DDPLAUNCH_METRICS; empty as above
  std::string server;   ///< where the hook may listen, or PyTorch's worker server; empty as above
};

/// The inputs of one worker's variables, as plain data.
struct WorkerFacts {
  rendezvous::Spawn spawn;  ///< the attempt on this node
  std::uint32_t local_rank = 0;
  std::string job_id;
  WorkerSockets sockets = {};    ///< DDPLAUNCH_CONTROL and DDPLAUNCH_METRICS; empty: not set
  std::string collectives = {};  ///< DDPLAUNCH_COLLECTIVES (FlightRecorderBoard::path); empty: not set
  std::string python_hook = {};  ///< directory of write_python_hook, for PYTHONPATH; empty: no hook
  std::string error_file;        ///< file for PyTorch's `@record`; empty: not set

  int omp_threads = 1;               ///< omp_threads_for(); used only if the user set none
  std::vector<std::string> devices;  ///< gpus=0,2: CUDA_VISIBLE_DEVICES of the node's workers; empty: not set

  std::uint32_t rank() const { return spawn.first_rank + local_rank; }
};

struct WorkerEnv {
  EnvVars vars;                    ///< to overlay the node's environment; table in docs/users/environment.md
  std::optional<int> omp_threads;  ///< set if ddplaunch chose OMP_NUM_THREADS; the caller reports it once
};

/// Returns the variables of one worker: those of torchrun, DeepSpeed, NCCL and ddplaunch. `base` (merge_env's
/// result) is used only for variables that keep the user's own value: OMP_NUM_THREADS, PYTHONUNBUFFERED,
/// *_SOCKET_IFNAME, NCCL_SOCKET_FAMILY, proxies, PYTHONPATH, *NCCL_ASYNC_ERROR_HANDLING,
/// OTEL_RESOURCE_ATTRIBUTES, TRACEPARENT.
WorkerEnv worker_env(const WorkerFacts& facts, const EnvVars& base);

/// Returns whether every worker gets this variable from ddplaunch, so that a value of the user is lost: RANK,
/// MASTER_ADDR and the like.
bool is_worker_fact(std::string_view name);

/// Returns the number of open files that an agent needs for so many workers.
std::size_t agent_files(std::size_t workers);

/// Returns the threads per worker: usable physical cores (NodeFacts::cores) divided by the node's workers, at
/// least 1.
int omp_threads_for(int cores, int local_world_size);

}  // namespace ddp::launcher
