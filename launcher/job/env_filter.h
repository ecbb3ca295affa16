#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddp::launcher {

/// An environment as data: names without '=', values of any bytes but NUL, in order. A name stands once.
using EnvVars = std::vector<std::pair<std::string, std::string>>;

/// Why a variable of one machine does not belong on another one (docs/environment.md lists the table).
enum class EnvClass {
  kFree,      ///< forwarded
  kSession,   ///< identity, terminal, login session, temporary directories: each node's own
  kLoader,    ///< LD_PRELOAD, LD_AUDIT: each node's own
  kDevice,    ///< device masks: each node's own, so kept on the master's own machine
  kNetwork,   ///< interface and adapter names: each node's own
  kCluster,   ///< addresses that Kubernetes injects: each node's own
  kForeign,   ///< another launcher's rank facts (SLURM_*, OMPI_*, PMI_* …): no worker sees them
  kRankFact,  ///< stale RANK, MASTER_ADDR, TORCHELASTIC_* …: no worker sees them
  kOurs,      ///< DDPLAUNCH_*: no worker inherits them
};
EnvClass env_class(std::string_view name);

/// One row of the deny list: globs separated by blanks, '*' is any text. Earlier rows win where globs
/// overlap.
struct DenyRow {
  EnvClass why;
  std::string_view globs;
};
std::span<const DenyRow> deny_table();

/// "NAME=VALUE" strings, as environ has them, to EnvVars. Entries without '=' or with an empty name are left
/// out; of a repeated name the first one counts, as getenv does.
EnvVars split_env(std::span<const std::string> entries);
/// The same of a null-terminated array such as environ.
EnvVars split_env(const char* const* entries);

/// What the master sends to a node: every kFree variable of its own environment; for a node that is the
/// master's own machine (`local`) its device variables too.
EnvVars forwarded_env(const EnvVars& own, bool local = false);

/// `--env NAME=VALUE` and `--env NAME` (taken from `own`); overrides the deny list. All mistakes at once
/// (kUsage): a name that is empty or has '=' or NUL, a NAME that is not set. A later word wins over an
/// earlier one.
Result<EnvVars> explicit_env(const EnvVars& own, const std::vector<std::string>& words);

/// Names in `vars` that are bound to one node's hardware (kNetwork, kDevice): given by --env they reach all
/// nodes alike, which deserves one warning.
std::vector<std::string> node_bound_names(const EnvVars& vars);

/// The environment that workers of one node start from: the node's own (without kForeign, kRankFact, kOurs),
/// overlaid by `forwarded`, overlaid by `explicit_vars` (--env and the hostfile's env:NAME=VALUE, verbatim).
/// PATH is the forwarded one with the node's own entries appended that it lacks; an explicit PATH stays as it
/// is. A worker's own variables (worker_env.h) come on top of this.
EnvVars merge_env(const EnvVars& node_env, const EnvVars& forwarded, const EnvVars& explicit_vars);

/// Sets `name`, replacing a value that is there.
void set_env(EnvVars& vars, std::string_view name, std::string_view value);
/// The value, or nullptr. The pointer lives as long as `vars` is not changed.
const std::string* find_env(const EnvVars& vars, std::string_view name);

/// When `vars` has a proxy: the list for no_proxy and NO_PROXY, which is theirs with `addresses` added, so
/// that gRPC and HTTP between the nodes do not go through it. Nothing when there is no proxy.
std::optional<std::string> no_proxy_list(const EnvVars& vars, const std::vector<std::string>& addresses);

/// Directories that the environment promises to the program: VIRTUAL_ENV, CONDA_PREFIX, PYTHONHOME. The agent
/// checks that they exist and refuses with the host's name and the path when not.
EnvVars promised_directories(const EnvVars& vars);

inline constexpr std::size_t kMaxEnvString = 128 * 1024;       ///< Linux MAX_ARG_STRLEN, "NAME=VALUE" and NUL
inline constexpr std::size_t kMaxExecTotal = 2 * 1024 * 1024;  ///< a quarter of the usual 8 MiB stack limit

/// Whether execve can take this, checked before the spawn. Error (`code`): the variable or argument that is
/// too long, or for the total its largest variables; names only, never values.
Result<> check_exec_size(const EnvVars& vars, std::span<const std::string> argv,
                         ErrorCode code = ErrorCode::kRefused, std::size_t total_limit = kMaxExecTotal);

}  // namespace ddp::launcher
