#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "apps/train/collectives/communicator.h"
#include "base/result.h"

namespace ddp::train {

class NcclDevice;
class NcclLibrary;

struct NcclWorldConfig {
  std::string job_id;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 0;                          ///< 0: not known
  int node = -1;                                     ///< -1: not known
  std::chrono::milliseconds start_timeout{120'000};  ///< for a start; step_timeout if that is longer
  std::chrono::milliseconds step_timeout{60'000};
  int interrupt = -1;
  bool share_gpu = false;   ///< several ranks on one GPU
  bool rejoins = false;     ///< communicators are aborted and replaced in this process; the same on all ranks
  std::string remark;       ///< rank 0 prints it before NcclWorld::line
  std::string advice;       ///< ends the text of an error of NCCL at its start
  bool with_nodes = false;  ///< sets NcclWorld::node and ::between; needs local_rank and node
};

struct NcclWorld {
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Communicator> node;  ///< null if not requested
  std::unique_ptr<Communicator> between;
  int node_count = 0;   ///< 0: not known
  std::string line;     ///< "NCCL 2.28.9 (/usr/lib/…/libnccl.so.2) over Socket eth0, …": for people
  std::string warning;  ///< about the network that NCCL chose; empty: none
};

/// Sets NCCL's variables, loads NCCL, and returns its name: "NCCL 2.28.9 (/usr/lib/…/libnccl.so.2)". Fails
/// with kUsage if this build, machine or rank lacks something for NCCL, before any rank waits for another.
Result<std::string> load_nccl(const NcclWorldConfig& config);

/// A rank's share of its GPU's memory.
struct NcclGpuMemory {
  std::string name;       ///< "GPU 0 (NVIDIA H100)"
  std::size_t bytes = 0;  ///< total memory, used or free, divided by the ranks that share it
};
/// `local_world_size`: 0 if not known. Errors as in load_nccl().
Result<NcclGpuMemory> nccl_gpu_memory(int local_rank, int local_world_size, bool share_gpu);

/// Connects all ranks over their GPUs. Rank 0 prints NcclWorld::line, a node's first rank its warning.
Result<NcclWorld> connect_nccl(const NcclWorldConfig& config, PeerDirectory& directory);
/// Does the same with a given library and device; tests call this.
Result<NcclWorld> connect_nccl_over(std::shared_ptr<const NcclLibrary> library,
                                    std::shared_ptr<NcclDevice> device, const NcclWorldConfig& config,
                                    PeerDirectory& directory);

/// Returns true if an NCCL call did not return in time and its thread was abandoned. A normal end of the
/// program may then hang forever: the program should flush its output and call _exit.
bool nccl_is_stuck();

}  // namespace ddp::train
