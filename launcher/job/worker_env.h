#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/env_filter.h"

namespace ddp::launcher {

/// Everything that one worker's variables are made of. Plain data; the agent fills it from the master's start
/// message.
struct WorkerFacts {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int node_rank = 0;
  int node_count = 1;

  std::string master_addr;
  std::uint16_t master_port = 0;
  bool agent_store = true;  ///< --store agent: the store is already served on master_port

  std::string job_id;
  int restart_count = 0;
  int max_restarts = 0;
  std::string control = {};  ///< DDPLAUNCH_CONTROL (docs/worker_protocol.md); empty: variable not set
  std::string collectives =
      {};                  ///< DDPLAUNCH_COLLECTIVES (FlightRecorderBoard::path); empty: variable not set
  std::string error_file;  ///< where `@record` of PyTorch writes; empty: variable not set

  int omp_threads = 1;  ///< omp_threads_for(); used only when the user set none
  std::vector<std::string>
      devices;            ///< gpus=0,2: CUDA_VISIBLE_DEVICES of all workers of the node; empty: not touched
  std::string interface;  ///< of net_choice; empty: not clear, leave NCCL and Gloo to themselves
};

struct WorkerEnv {
  EnvVars vars;  ///< to be laid over the node's environment; docs/environment.md has the table
  std::optional<int> omp_threads;  ///< set when OMP_NUM_THREADS is ours, so that the caller can say so once
};

/// The variables of one worker: torchrun's, DeepSpeed's, NCCL's and ours. `base` (merge_env's result) is
/// looked at only for what the user's own value keeps: OMP_NUM_THREADS, PYTHONUNBUFFERED, *_SOCKET_IFNAME,
/// proxies, *NCCL_ASYNC_ERROR_HANDLING.
WorkerEnv worker_env(const WorkerFacts& facts, const EnvVars& base);

/// Threads per worker: usable physical cores (NodeFacts::cores) over the node's workers, at least 1.
int omp_threads_for(int cores, int local_world_size);

}  // namespace ddp::launcher
