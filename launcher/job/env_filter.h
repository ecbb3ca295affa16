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

/// Returns the base environment of the workers of one node: the node's own (without kForeign, kRankFact,
/// kOurs), overlaid by `forwarded`, overlaid by `explicit_vars` (--env and the hostfile's env:NAME=VALUE,
/// verbatim). PATH is the forwarded one plus the node's entries that it lacks; an explicit PATH is not
/// changed. A worker's own variables (worker_env.h) are added on top.
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

}  // namespace ddp::launcher
