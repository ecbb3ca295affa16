#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace ddp::train {

/// The launcher's information about this rank (torchrun's environment contract). Without RANK and WORLD_SIZE:
/// a world of one.
struct WorkerEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 0;       ///< 0: unknown
  int node = -1;                  ///< GROUP_RANK; -1: unknown
  std::string master_addr;        ///< set when world_size > 1
  std::uint16_t master_port = 0;  ///< port of the store
  std::string run_id;
  std::uint32_t attempt = 0;       ///< TORCHELASTIC_RESTART_COUNT
  std::int64_t max_restarts = -1;  ///< TORCHELASTIC_MAX_RESTARTS; -1: unknown
  /// True: the launcher serves the store at MASTER_ADDR:MASTER_PORT. False: rank 0 must serve it.
  bool agent_store = false;
  std::string control;      ///< DDPLAUNCH_CONTROL: reports of lost peers come from here; empty: none
  std::string collectives;  ///< DDPLAUNCH_COLLECTIVES: log of operations for the launcher; empty: none
};

/// Names this rank in messages: "rank 3".
inline std::string rank_text(const WorkerEnvironment& environment) {
  return "rank " + std::to_string(environment.rank);
}

/// `get` is std::getenv outside tests. Errors (kUsage) name the variable.
Result<WorkerEnvironment> read_worker_environment(const std::function<const char*(const char*)>& get);

}  // namespace ddp::train
