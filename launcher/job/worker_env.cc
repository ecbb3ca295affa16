#include "launcher/job/worker_env.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/crypto.h"
#include "base/text.h"

namespace ddp::launcher {
namespace {

void add(EnvVars& vars, const char* name, std::string value) {
  vars.emplace_back(name, std::move(value));
}
void add(EnvVars& vars, const char* name, int value) {
  vars.emplace_back(name, std::to_string(value));
}

// Uses the names of torch.distributed.elastic (agent/server/local_elastic_agent.py), in its order. All
// workers have ROLE_NAME "default", so role ranks equal ranks.
void add_torchelastic(EnvVars& vars, const WorkerFacts& facts) {
  add(vars, "LOCAL_RANK", facts.local_rank);
  add(vars, "RANK", facts.rank);
  add(vars, "GROUP_RANK", facts.node_rank);
  add(vars, "ROLE_RANK", facts.rank);
  add(vars, "ROLE_NAME", "default");
  add(vars, "LOCAL_WORLD_SIZE", facts.local_world_size);
  add(vars, "WORLD_SIZE", facts.world_size);
  add(vars, "GROUP_WORLD_SIZE", facts.node_count);
  add(vars, "ROLE_WORLD_SIZE", facts.world_size);
  add(vars, "MASTER_ADDR", facts.master_addr);
  add(vars, "MASTER_PORT", facts.master_port);
  add(vars, "TORCHELASTIC_RESTART_COUNT", facts.restart_count);
  add(vars, "TORCHELASTIC_MAX_RESTARTS", facts.max_restarts);
  add(vars, "TORCHELASTIC_RUN_ID", facts.job_id);
  add(vars, "TORCHELASTIC_USE_AGENT_STORE", facts.agent_store ? "True" : "False");
  if (!facts.error_file.empty()) add(vars, "TORCHELASTIC_ERROR_FILE", facts.error_file);
}

// Variables of other launchers that scripts read: NODE_RANK (torch.distributed.launch, Lightning); the rest
// DeepSpeed and Horovod.
void add_other_launchers(EnvVars& vars, const WorkerFacts& facts) {
  add(vars, "NODE_RANK", facts.node_rank);
  add(vars, "CROSS_RANK", facts.node_rank);
  add(vars, "CROSS_SIZE", facts.node_count);
  add(vars, "LOCAL_SIZE", facts.local_world_size);
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
  const bool six = facts.master_addr.find(':') != std::string::npos;
  if (six && !find_env(base, "NCCL_SOCKET_FAMILY")) add(vars, "NCCL_SOCKET_FAMILY", "AF_INET6");
}

// Telemetry of the worker names its job and rank (OpenTelemetry, Resource SDK). Job ids need no escapes.
void add_telemetry(EnvVars& vars, const WorkerFacts& facts, const EnvVars& base) {
  const std::string* own = find_env(base, "OTEL_RESOURCE_ATTRIBUTES");
  add(vars, "OTEL_RESOURCE_ATTRIBUTES",
      (own && !own->empty() ? *own + ',' : "") + "ddplaunch.job.id=" + facts.job_id + ",ddplaunch.rank=" +
          std::to_string(facts.rank) + ",ddplaunch.attempt=" + std::to_string(facts.restart_count));
  // Spans of all ranks belong to one trace (W3C Trace Context: version, trace id, parent id, sampled). Each
  // node makes the same one.
  if (const std::string* trace = find_env(base, "TRACEPARENT"); trace && !trace->empty()) return;
  const std::string ids = sha256_hex("trace of job " + facts.job_id);
  add(vars, "TRACEPARENT", "00-" + ids.substr(0, 32) + "-" + ids.substr(32, 16) + "-01");
}

// The connections of every framework go to rank 0's address.
void add_no_proxy(EnvVars& vars, const WorkerFacts& facts, const EnvVars& base) {
  const auto list = no_proxy_list(base, {"localhost", "127.0.0.1", facts.master_addr});
  if (!list) return;
  add(vars, "no_proxy", *list);
  add(vars, "NO_PROXY", *list);
}

}  // namespace

WorkerEnv worker_env(const WorkerFacts& facts, const EnvVars& base) {
  WorkerEnv made;
  add_facts(made.vars, facts);
  if (!facts.sockets.control.empty()) add(made.vars, "DDPLAUNCH_CONTROL", facts.sockets.control);
  if (!facts.sockets.metrics.empty()) add(made.vars, "DDPLAUNCH_METRICS", facts.sockets.metrics);
  if (!facts.collectives.empty()) add(made.vars, "DDPLAUNCH_COLLECTIVES", facts.collectives);
  add_nccl_error_handling(made.vars, base);
  add_interface(made.vars, facts.interface, base);
  add_family(made.vars, facts, base);
  add_no_proxy(made.vars, facts, base);
  add_telemetry(made.vars, facts, base);
  if (!facts.devices.empty()) add(made.vars, "CUDA_VISIBLE_DEVICES", join(facts.devices, ","));
  if (!find_env(base, "PYTHONUNBUFFERED")) add(made.vars, "PYTHONUNBUFFERED", "1");
  if (!find_env(base, "OMP_NUM_THREADS")) {
    made.omp_threads = std::max(facts.omp_threads, 1);
    add(made.vars, "OMP_NUM_THREADS", *made.omp_threads);
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
