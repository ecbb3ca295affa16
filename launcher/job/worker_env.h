#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/env_filter.h"

namespace ddp::launcher {

/// The sockets of one worker process (docs/developers/worker_protocol.md).
struct WorkerSockets {
  std::string control;  ///< value of DDPLAUNCH_CONTROL; empty: none could be made
  std::string metrics;  ///< value of DDPLAUNCH_METRICS; empty as above
};

/// The inputs of one worker's variables, as plain data. The agent fills them from the master's start message.
struct WorkerFacts {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int node_rank = 0;
  int node_count = 1;

  std::string master_addr;
  std::uint16_t master_port = 0;
  bool agent_store = true;  ///< --store agent: the agent serves the store on master_port

  std::string job_id;
  int restart_count = 0;
  int max_restarts = 0;
  WorkerSockets sockets = {};    ///< DDPLAUNCH_CONTROL and DDPLAUNCH_METRICS; empty: not set
  std::string collectives = {};  ///< DDPLAUNCH_COLLECTIVES (FlightRecorderBoard::path); empty: not set
  std::string error_file;        ///< file for PyTorch's `@record`; empty: not set

  int omp_threads = 1;               ///< omp_threads_for(); used only if the user set none
  std::vector<std::string> devices;  ///< gpus=0,2: CUDA_VISIBLE_DEVICES of the node's workers; empty: not set
  std::string interface;             ///< of net_choice; empty: unknown, NCCL and Gloo choose
};

struct WorkerEnv {
  EnvVars vars;                    ///< to overlay the node's environment; table in docs/users/environment.md
  std::optional<int> omp_threads;  ///< set if ddplaunch chose OMP_NUM_THREADS; the caller reports it once
};

/// Returns the variables of one worker: those of torchrun, DeepSpeed, NCCL and ddplaunch. `base` (merge_env's
/// result) is used only for variables that keep the user's own value: OMP_NUM_THREADS, PYTHONUNBUFFERED,
/// *_SOCKET_IFNAME, NCCL_SOCKET_FAMILY, proxies, *NCCL_ASYNC_ERROR_HANDLING, OTEL_RESOURCE_ATTRIBUTES,
/// TRACEPARENT.
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
