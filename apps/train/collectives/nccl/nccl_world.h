#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/peer_directory.h"
#include "base/result.h"

namespace ddp::train {

class NcclDevice;
class NcclLibrary;

struct NcclWorldConfig {
  std::string job_id;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 0;                          ///< 0: not told
  int node = -1;                                     ///< -1: not told
  std::chrono::milliseconds start_timeout{120'000};  ///< for a start; step_timeout where that is longer
  std::chrono::milliseconds step_timeout{60'000};
  int interrupt = -1;
  bool share_gpu = false;   ///< several ranks on one GPU
  std::string remark;       ///< begins what rank 0 prints
  bool with_nodes = false;  ///< NcclWorld::node and ::between are wanted; needs local_rank and node
};

struct NcclWorld {
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Communicator> node;  ///< null where not asked for
  std::unique_ptr<Communicator> between;
  int node_count = 0;   ///< 0: not known
  std::string line;     ///< "NCCL 2.28.9 over Socket eth0, 2 channels, …": for people
  std::string warning;  ///< of the network that NCCL chose; empty: none
};

/// What this build, machine or rank lacks for NCCL (kUsage): before any rank waits for another. It sets
/// NCCL's variables and loads it.
Result<> nccl_is_here(const NcclWorldConfig& config);

/// A rank's part of the memory of the GPU that falls to it.
struct NcclGpuMemory {
  std::string name;       ///< "GPU 0 (NVIDIA H100)"
  std::size_t bytes = 0;  ///< all of it, whoever has it now, divided by the ranks that share it
};
/// `local_world_size`: 0 where it is not told. Errors as of nccl_is_here().
Result<NcclGpuMemory> nccl_gpu_memory(int local_rank, int local_world_size, bool share_gpu);

/// Connects all ranks over the GPU that falls to each. Rank 0 prints how, a node's first rank its warning.
Result<NcclWorld> connect_nccl(const NcclWorldConfig& config, PeerDirectory& directory);
/// The same with a library and device that are given; what tests call.
Result<NcclWorld> connect_nccl_over(std::shared_ptr<const NcclLibrary> library,
                                    std::shared_ptr<NcclDevice> device, const NcclWorldConfig& config,
                                    PeerDirectory& directory);

/// A call of NCCL's did not come back in time, and its thread was left alone: whoever ends the program as
/// usual may wait for ever, and should flush its output and call _exit.
bool nccl_is_stuck();

}  // namespace ddp::train
