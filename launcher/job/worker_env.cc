// What leaves a machine and what stays (the table of variables, merging, checks); then the variables that
// each worker gets.
#include "launcher/job/worker_env.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/crypto.h"
#include "base/text.h"

namespace ddp::launcher {
namespace {

// Variables that never leave their machine, or never reach a worker at all. docs/users/environment.md has the
// reason for each class; a test compares this table with that document. If globs overlap, the first row wins.
constexpr std::array kDenied{
    DenyRow{EnvClass::kOurs, "DDPLAUNCH_*"},
    DenyRow{
        EnvClass::kForeign,
        "SLURM_* SLURMD_* SRUN_* SBATCH_* SALLOC_* PMI_* PMIX_* PALS_* OMPI_* PRTE_* MPI_* HYDRA_* HYDI_* "
        "MV2_COMM_* FLUX_* LSB_* PBS_* HOROVOD_*RANK HOROVOD_*SIZE"},
    DenyRow{EnvClass::kRankFact,
            "RANK LOCAL_RANK WORLD_SIZE *_RANK *_WORLD_SIZE LOCAL_SIZE CROSS_SIZE ROLE_NAME MASTER_* "
            "TORCHELASTIC_* "
            "GROUP_* PET_* ACCELERATE_*PROCESS* JAX_*PROCESS*"},
    DenyRow{EnvClass::kDevice,
            "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES "
            "ZE_AFFINITY_MASK "
            "GPU_DEVICE_ORDINAL"},
    DenyRow{
        EnvClass::kNetwork,
        "NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME NCCL_IB_HCA UCX_NET_DEVICES NCCL_TOPO_FILE "
        "NCCL_RAS_ADDR"},
    DenyRow{EnvClass::kLoader, "LD_PRELOAD LD_AUDIT"},
    DenyRow{EnvClass::kCluster, "KUBERNETES_* *_SERVICE_HOST *_SERVICE_PORT *_SERVICE_PORT_* *_PORT_*_TCP*"},
    DenyRow{EnvClass::kSession,
            "HOME USER LOGNAME SHELL PWD OLDPWD SHLVL _ MAIL TERM* COLORTERM COLUMNS LINES DISPLAY WAYLAND_* "
            "XAUTHORITY "
            "XDG_* DBUS_* SSH_* GPG_* KRB5CCNAME TMUX* STY WINDOW* VSCODE_* LS_COLORS PS1 PROMPT_COMMAND "
            "HOSTNAME HOST "
            "HOSTTYPE TMPDIR TMP TEMP JOURNAL_STREAM INVOCATION_ID NOTIFY_SOCKET LISTEN_* MAINPID SUDO_* "
            "BASH_ENV ENV "
            "BASH_FUNC_*"},
    DenyRow{EnvClass::kShell, "SHELLOPTS BASHOPTS"},
};

bool glob_matches(std::string_view glob, std::string_view text) {
  std::size_t g = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      // The last star takes one character more whenever the rest does not fit. An earlier star never has to
      // take more.
      star = g++;
      resume = t;
    } else if (g < glob.size() && glob[g] == text[t]) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*')
    ++g;
  return g == glob.size();
}

bool any_glob_matches(std::string_view globs, std::string_view name) {
  while (!globs.empty()) {
    const std::size_t blank = std::min(globs.find(' '), globs.size());
    if (blank > 0 && glob_matches(globs.substr(0, blank), name)) return true;
    globs.remove_prefix(std::min(blank + 1, globs.size()));
  }
  return false;
}

// A node's own environment keeps the variables of the node. Rank facts of an outer launcher are wrong on
// every node. On the master's own machine the node's environment is that of the shell that started ddplaunch.
bool stays_on_node(EnvClass why) {
  return why != EnvClass::kShell && why != EnvClass::kForeign && why != EnvClass::kRankFact &&
         why != EnvClass::kOurs;
}

// Calls `each` with the parts of a list such as PATH.
template <class Each>
void for_each_part(std::string_view list, char separator, Each each) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(separator), list.size());
    each(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

std::string appended(const std::string& first, const std::string& more, char separator) {
  std::unordered_set<std::string_view> known;
  for_each_part(first, separator, [&](std::string_view part) { known.insert(part); });
  std::string list = first;
  for_each_part(more, separator, [&](std::string_view part) {
    if (part.empty() || !known.insert(part).second) return;
    if (!list.empty()) list += separator;
    list += part;
  });
  return list;
}

void add_once(EnvVars& vars, std::string_view entry) {
  const std::size_t equals = entry.find('=');
  if (equals == 0 || equals == std::string_view::npos) return;
  const std::string_view name = entry.substr(0, equals);
  if (!find_env(vars, name)) vars.emplace_back(name, entry.substr(equals + 1));
}

std::string largest_variables(const EnvVars& vars) {
  std::vector<std::pair<std::size_t, std::string_view>> sizes;
  for (const auto& [name, value] : vars)
    sizes.emplace_back(value.size(), name);
  const std::size_t shown = std::min<std::size_t>(sizes.size(), 3);
  std::partial_sort(
      sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(shown), sizes.end(),
      [](const auto& a, const auto& b) { return std::tie(b.first, a.second) < std::tie(a.first, b.second); });
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += ", ";
    text += std::string(sizes[i].second) + " (" + std::to_string(sizes[i].first) + " bytes)";
  }
  return text;
}

}  // namespace

std::span<const DenyRow> deny_table() {
  return kDenied;
}

EnvClass env_class(std::string_view name) {
  for (const DenyRow& row : kDenied) {
    if (any_glob_matches(row.globs, name)) return row.why;
  }
  return EnvClass::kFree;
}

EnvVars split_env(std::span<const std::string> entries) {
  EnvVars vars;
  for (const std::string& entry : entries)
    add_once(vars, entry);
  return vars;
}

std::vector<std::string> env_entries(const EnvVars& vars) {
  std::vector<std::string> entries;
  entries.reserve(vars.size());
  for (const auto& [name, value] : vars)
    entries.push_back(name + "=" + value);
  return entries;
}

EnvVars forwarded_env(const EnvVars& own, bool local) {
  EnvVars vars;
  for (const auto& var : own) {
    const EnvClass why = env_class(var.first);
    if (why == EnvClass::kFree || (local && why == EnvClass::kDevice)) vars.push_back(var);
  }
  return vars;
}

Result<EnvVars> explicit_env(const EnvVars& own, const std::vector<std::string>& words) {
  EnvVars vars;
  std::string errors;
  auto problem = [&](const std::string& text) { errors += (errors.empty() ? "" : "\n") + text; };
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string shown = one_line(name);  // one line of the error per problem
    if (name.empty()) {
      problem("--env: missing name before '='");
    } else if (word.find('\0') != std::string::npos) {
      problem("--env " + one_line(name.substr(0, name.find('\0'))) +
              ": an environment variable cannot contain a NUL byte");
    } else if (equals != std::string::npos) {
      set_env(vars, name, std::string_view(word).substr(equals + 1));
    } else if (const std::string* value = find_env(own, name)) {
      set_env(vars, name, *value);
    } else {
      problem("--env " + shown + ": " + shown + " is not set here; write --env " + shown + "=VALUE");
    }
  }
  if (!errors.empty()) return Error{ErrorCode::kUsage, errors};
  return vars;
}

std::vector<std::string> node_bound_names(const EnvVars& vars) {
  std::vector<std::string> names;
  for (const auto& [name, value] : vars) {
    const EnvClass why = env_class(name);
    if (why == EnvClass::kNetwork || why == EnvClass::kDevice) names.push_back(name);
  }
  return names;
}

EnvVars merge_env(const EnvVars& node_env, const EnvVars& forwarded, const EnvVars& explicit_vars) {
  EnvVars vars;
  for (const auto& var : node_env) {
    if (stays_on_node(env_class(var.first))) vars.push_back(var);
  }
  const std::string* node_path = find_env(node_env, "PATH");
  for (const auto& [name, value] : forwarded) {
    // The master's PATH finds the same programs as there, and the node's own finds what only that node has.
    set_env(vars, name, name == "PATH" && node_path ? appended(value, *node_path, ':') : value);
  }
  for (const auto& [name, value] : explicit_vars)
    set_env(vars, name, value);
  return vars;
}

void set_env(EnvVars& vars, std::string_view name, std::string_view value) {
  for (auto& [known, known_value] : vars) {
    if (known == name) {
      known_value = value;
      return;
    }
  }
  vars.emplace_back(name, value);
}

const std::string* find_env(const EnvVars& vars, std::string_view name) {
  for (const auto& [known, value] : vars) {
    if (known == name) return &value;
  }
  return nullptr;
}

std::optional<std::string_view> path_in(const EnvVars& vars) {
  const std::string* path = find_env(vars, "PATH");
  return path != nullptr ? std::optional<std::string_view>(*path) : std::nullopt;
}

std::optional<std::string> no_proxy_list(const EnvVars& vars, const std::vector<std::string>& addresses) {
  const char* const proxies[] = {"http_proxy", "https_proxy", "all_proxy", "grpc_proxy",
                                 "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "GRPC_PROXY"};
  if (std::none_of(std::begin(proxies), std::end(proxies),
                   [&](const char* name) { return find_env(vars, name); })) {
    return std::nullopt;
  }
  const std::string own = join(addresses, ",");
  // Programs read different spellings, and a user may have set only one. Both get the values of either.
  const std::string* lower = find_env(vars, "no_proxy");
  const std::string* upper = find_env(vars, "NO_PROXY");
  // "*" means no proxy at all, but only if it stands alone.
  if ((lower && *lower == "*") || (upper && *upper == "*")) return "*";
  return appended(appended(lower ? *lower : "", upper ? *upper : "", ','), own, ',');
}

EnvVars promised_directories(const EnvVars& vars) {
  EnvVars found;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME"}) {
    const std::string* value = find_env(vars, name);
    if (!value) continue;
    // Python also accepts PREFIX:EXEC_PREFIX.
    const bool two = std::string_view(name) == "PYTHONHOME";
    std::string directory = two ? value->substr(0, value->find(':')) : *value;
    if (!directory.empty()) found.emplace_back(name, std::move(directory));
  }
  return found;
}

Result<> check_exec_size(const EnvVars& vars, std::span<const std::string> argv, ErrorCode code,
                         std::size_t total_limit) {
  // Linux counts each string with its NUL and, since 4.13, its pointer (fs/exec.c).
  const std::string limit = std::to_string(kMaxEnvString - 1);
  std::size_t total = (vars.size() + argv.size()) * sizeof(char*);
  for (const auto& [name, value] : vars) {
    const std::size_t size = name.size() + 1 + value.size() + 1;
    if (size > kMaxEnvString) {
      return Error{code, "environment variable " + name + " has " + std::to_string(size - 1) +
                             " bytes; Linux passes at most " + limit + " per variable; remove or shorten it"};
    }
    if (value.find('\0') != std::string::npos) {
      return Error{code, "environment variable " + name + " holds a NUL byte, which Linux cannot pass"};
    }
    total += size;
  }
  for (std::size_t i = 0; i < argv.size(); ++i) {
    const std::string which = "argument " + std::to_string(i) + " of the worker";
    if (argv[i].size() + 1 > kMaxEnvString) {
      return Error{code, which + " has " + std::to_string(argv[i].size()) + " bytes; Linux passes at most " +
                             limit + " per argument; put it into a file"};
    }
    if (argv[i].find('\0') != std::string::npos) {
      return Error{code, which + " holds a NUL byte, which Linux cannot pass"};
    }
    total += argv[i].size() + 1;
  }
  if (total > total_limit) {
    return Error{code, "arguments and environment have " + std::to_string(total) +
                           " bytes together, at most " + std::to_string(total_limit) +
                           " can be passed; largest variables: " + largest_variables(vars)};
  }
  return {};
}

namespace {

void add(EnvVars& vars, const char* name, std::string value) {
  vars.emplace_back(name, std::move(value));
}
void add(EnvVars& vars, const char* name, std::uint32_t value) {
  vars.emplace_back(name, std::to_string(value));
}

// Uses the names of torch.distributed.elastic (agent/server/local_elastic_agent.py), in its order. All
// workers have ROLE_NAME "default", so role ranks equal ranks.
void add_torchelastic(EnvVars& vars, const WorkerFacts& facts) {
  add(vars, "LOCAL_RANK", facts.local_rank);
  add(vars, "RANK", facts.rank());
  add(vars, "GROUP_RANK", facts.spawn.node_rank);
  add(vars, "ROLE_RANK", facts.rank());
  add(vars, "ROLE_NAME", "default");
  add(vars, "LOCAL_WORLD_SIZE", facts.spawn.local_world_size);
  add(vars, "WORLD_SIZE", facts.spawn.world_size);
  add(vars, "GROUP_WORLD_SIZE", facts.spawn.nodes);
  add(vars, "ROLE_WORLD_SIZE", facts.spawn.world_size);
  add(vars, "MASTER_ADDR", facts.spawn.master_addr);
  add(vars, "MASTER_PORT", facts.spawn.master_port);
  add(vars, "TORCHELASTIC_RESTART_COUNT", facts.spawn.attempt);
  add(vars, "TORCHELASTIC_MAX_RESTARTS", facts.spawn.max_restarts);
  add(vars, "TORCHELASTIC_RUN_ID", facts.job_id);
  add(vars, "TORCHELASTIC_USE_AGENT_STORE", facts.spawn.agent_store ? "True" : "False");
  if (!facts.error_file.empty()) add(vars, "TORCHELASTIC_ERROR_FILE", facts.error_file);
}

// Variables of other launchers that scripts read: NODE_RANK (torch.distributed.launch, Lightning); the rest
// DeepSpeed and Horovod.
void add_other_launchers(EnvVars& vars, const WorkerFacts& facts) {
  add(vars, "NODE_RANK", facts.spawn.node_rank);
  add(vars, "CROSS_RANK", facts.spawn.node_rank);
  add(vars, "CROSS_SIZE", facts.spawn.nodes);
  add(vars, "LOCAL_SIZE", facts.spawn.local_world_size);
}

// Sets the variables that override a value of the user.
void add_facts(EnvVars& vars, const WorkerFacts& facts) {
  add_torchelastic(vars, facts);
  add_other_launchers(vars, facts);
  add(vars, "DDPLAUNCH_JOB_ID", facts.job_id);
}

// A dead peer must become an error in the surviving ranks, or they hang in the collective. torch < 2.2 reads
// the name without the prefix; later versions warn about it only when the other is missing. A user's own
// value, under either name, is used for both.
void add_nccl_error_handling(EnvVars& vars, const EnvVars& base) {
  const char* const names[] = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"};
  const std::string* own = nullptr;
  for (const char* name : names) {
    if (!own) own = find_env(base, name);
  }
  for (const char* name : names) {
    if (!find_env(base, name)) add(vars, name, own ? *own : "1");
  }
}

// NCCL takes a name as a prefix unless it begins with '=' (eth1 would match eth10). Gloo and TensorPipe take
// the exact name and do not support '='.
void add_interface(EnvVars& vars, const std::string& interface, const EnvVars& base) {
  if (interface.empty()) return;
  if (!find_env(base, "NCCL_SOCKET_IFNAME")) add(vars, "NCCL_SOCKET_IFNAME", "=" + interface);
  if (!find_env(base, "GLOO_SOCKET_IFNAME")) add(vars, "GLOO_SOCKET_IFNAME", interface);
}

// If an interface has addresses of both families, NCCL takes an IPv4 one, which other nodes may not reach.
void add_family(EnvVars& vars, const WorkerFacts& facts, const EnvVars& base) {
  const bool six = facts.spawn.master_addr.find(':') != std::string::npos;
  if (six && !find_env(base, "NCCL_SOCKET_FAMILY")) add(vars, "NCCL_SOCKET_FAMILY", "AF_INET6");
}

// Telemetry of the worker names its job and rank (OpenTelemetry, Resource SDK). Job ids need no escapes.
void add_telemetry(EnvVars& vars, const WorkerFacts& facts, const EnvVars& base) {
  const std::string* own = find_env(base, "OTEL_RESOURCE_ATTRIBUTES");
  add(vars, "OTEL_RESOURCE_ATTRIBUTES",
      (own && !own->empty() ? *own + ',' : "") + "ddplaunch.job.id=" + facts.job_id + ",ddplaunch.rank=" +
          std::to_string(facts.rank()) + ",ddplaunch.attempt=" + std::to_string(facts.spawn.attempt));
  // Spans of all ranks belong to one trace (W3C Trace Context: version, trace id, parent id, sampled). Each
  // node makes the same one.
  if (const std::string* trace = find_env(base, "TRACEPARENT"); trace && !trace->empty()) return;
  const std::string ids = sha256_hex("trace of job " + facts.job_id);
  add(vars, "TRACEPARENT", "00-" + ids.substr(0, 32) + "-" + ids.substr(32, 16) + "-01");
}

// The hook must be found before the user's own sitecustomize, which it executes.
void add_python_hook(EnvVars& vars, const WorkerFacts& facts, const EnvVars& base) {
  if (facts.python_hook.empty() || facts.sockets.server.empty()) return;
  const std::string* own = find_env(base, "PYTHONPATH");
  add(vars, "PYTHONPATH", facts.python_hook + (own && !own->empty() ? ':' + *own : ""));
  add(vars, "DDPLAUNCH_DIAGNOSIS", facts.sockets.server);
}

// The connections of every framework go to rank 0's address.
void add_no_proxy(EnvVars& vars, const WorkerFacts& facts, const EnvVars& base) {
  const auto list = no_proxy_list(base, {"localhost", "127.0.0.1", facts.spawn.master_addr});
  if (!list) return;
  add(vars, "no_proxy", *list);
  add(vars, "NO_PROXY", *list);
}

/// A process can use only one instance of a divided GPU (MIG), so each worker sees only its own.
std::string devices_of(const WorkerFacts& facts) {
  const auto is_instance = [](const std::string& name) { return name.starts_with("MIG-"); };
  if (std::ranges::none_of(facts.devices, is_instance)) return join(facts.devices, ",");
  return facts.devices[facts.local_rank % facts.devices.size()];
}

}  // namespace

WorkerEnv worker_env(const WorkerFacts& facts, const EnvVars& base) {
  WorkerEnv made;
  add_facts(made.vars, facts);
  if (!facts.sockets.control.empty()) add(made.vars, "DDPLAUNCH_CONTROL", facts.sockets.control);
  if (!facts.sockets.metrics.empty()) add(made.vars, "DDPLAUNCH_METRICS", facts.sockets.metrics);
  if (!facts.collectives.empty()) add(made.vars, "DDPLAUNCH_COLLECTIVES", facts.collectives);
  add_nccl_error_handling(made.vars, base);
  add_interface(made.vars, facts.spawn.interface_name, base);
  add_family(made.vars, facts, base);
  add_no_proxy(made.vars, facts, base);
  add_telemetry(made.vars, facts, base);
  add_python_hook(made.vars, facts, base);
  if (!facts.devices.empty()) add(made.vars, "CUDA_VISIBLE_DEVICES", devices_of(facts));
  if (!find_env(base, "PYTHONUNBUFFERED")) add(made.vars, "PYTHONUNBUFFERED", "1");
  if (!find_env(base, "OMP_NUM_THREADS")) {
    made.omp_threads = std::max(facts.omp_threads, 1);
    add(made.vars, "OMP_NUM_THREADS", std::to_string(*made.omp_threads));
  }
  return made;
}

bool is_worker_fact(std::string_view name) {
  WorkerFacts any;
  any.error_file = "any";
  EnvVars facts;
  add_facts(facts, any);
  return find_env(facts, name) != nullptr;
}

std::size_t agent_files(std::size_t workers) {
  constexpr std::size_t kOwn = 28;
  constexpr std::size_t kEach = 6;
  constexpr std::size_t kStarting = 64;  // workers that start at a time have one more each
  return kOwn + kEach * workers + std::min(workers, kStarting);
}

int omp_threads_for(int cores, int local_world_size) {
  return std::max(cores / std::max(local_world_size, 1), 1);
}

}  // namespace ddp::launcher
