#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "base/result.h"

struct ncclComm;

namespace ddp::train {

class NcclLibrary;

/// The ranks of one world and how they connect. Over NCCL, a start may take as long as a step if
/// start_timeout is shorter.
struct WorldConfig : GroupConfig {
  bool share_gpu = false;   ///< several ranks on one GPU, over NCCL
  bool rejoins = false;     ///< communicators are aborted and replaced in this process; the same on all ranks
  bool with_nodes = false;  ///< also connects the node's ranks, and the nodes; needs local_rank and node
  std::string remark{};     ///< begins the line that rank 0 prints about NCCL
  std::string advice{};     ///< ends the text of an error of NCCL at its start
  std::chrono::milliseconds end_timeout{5'000};  ///< for NCCL to abort or to free its memory
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
Result<std::string> load_nccl(const WorldConfig& config);

/// A rank's share of its GPU's memory.
struct NcclGpuMemory {
  std::string name;       ///< "GPU 0 (NVIDIA H100)"
  std::size_t bytes = 0;  ///< total memory, used or free, divided by the ranks that share it
};
/// `local_world_size`: 0 if not known. Errors as in load_nccl().
Result<NcclGpuMemory> nccl_gpu_memory(int local_rank, int local_world_size, bool share_gpu);

/// Connects all ranks over their GPUs. Rank 0 prints NcclWorld::line, a node's first rank its warning.
Result<NcclWorld> connect_nccl(const WorldConfig& config, PeerDirectory& directory);
/// Does the same with a given library and GPU; tests call this.
Result<NcclWorld> connect_nccl_over(std::shared_ptr<const NcclLibrary> library, int gpu,
                                    const WorldConfig& config, PeerDirectory& directory);

/// Returns the library and how this rank's NCCL has connected so far: "NCCL 2.28.9", "P2P", "IB mlx5_0:1/IB".
/// From NCCL 2.22 on, connections are made by the first operation.
std::vector<std::string> nccl_transports();

/// Prints the WARN lines of NCCL's log to stderr. Call it at the end: NCCL explains there what its error
/// codes do not say, also of a start that succeeded.
void report_nccl_warnings();

class NcclComms;

/// Ranks over NCCL. Host values go through a buffer and a stream of the device, at the cost of two copies.
/// Values in device memory stay there.
///
/// Sums are bit-equal on all ranks, since NCCL computes each element's sum once. A reduce-scatter is an
/// all-reduce, since NCCL's own may add in another order.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclComms> comms, ncclComm* comm, int rank, int world_size)
      : comms_(std::move(comms)), comm_(comm), rank_(rank), world_size_(world_size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  Result<> all_reduce_sum(NumberSpan values) override;
  Result<> broadcast(std::span<std::byte> data, int root) override;
  Result<> barrier() override;
  Result<> all_gather_parts(std::span<std::byte> parts) override;

  bool has_device_operations() const override { return true; }
  Result<> enqueue_on_device(const DeviceOperation& operation, void* stream) override;
  Result<> wait_for_device(const IsDeviceDone& done, std::string_view operation) override;
  void on_end(GraphOwner owner) override;
  DeviceMemory share_device_memory(std::size_t bytes) override;
  Result<std::unique_ptr<Communicator>> split(int color, int rank, int size) override;

 private:
  std::shared_ptr<NcclComms> comms_;
  ncclComm* comm_;
  int rank_;
  int world_size_;
};

}  // namespace ddp::train
