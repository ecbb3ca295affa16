#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/bench/bench.h"
#include "apps/train/bench/bench_report.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/world/world.h"
#include "base/result.h"

namespace ddp::train {

/// Memory in which operations are measured: the GPU's memory if the communicator has operations there.
/// Otherwise memory that the ranks of a node share, like a training's gradients, or this rank's own memory.
/// It is kept for all sizes. The communicator must outlive it.
class BenchMemory {
 public:
  /// All ranks call it with the same size.
  static Result<std::unique_ptr<BenchMemory>> make(Communicator& communicator, std::size_t bytes);

  Communicator& communicator() const { return communicator_; }
  /// Null: the buffer is in host memory.
  DeviceBuffer* device() const { return device_.get(); }
  std::span<std::byte> bytes() const { return bytes_; }
  /// Returns "windows", "registered" or "not registered"; empty for host memory. NCCL does not say whether it
  /// uses a window as a symmetric one: 2.27 and 2.28 return a handle in any case.
  std::string registration() const;

 private:
  explicit BenchMemory(Communicator& communicator) : communicator_(communicator) {}

  Communicator& communicator_;
  std::unique_ptr<DeviceBuffer> device_;
  AlignedBuffer<float> own_;
  std::span<std::byte> bytes_;
};

/// Returns how many bytes BenchMemory needs for messages of `bytes`.
std::size_t memory_of(const BenchOptions& options, std::size_t bytes);

/// Measures one size, after one operation whose result is compared. All ranks call it and get the same row.
Result<BenchRow> measure_row(const BenchOptions& options, BenchMemory& memory, std::size_t bytes);

/// Measures messages of 8 bytes and of `options.max_bytes` between every two ranks, in pair_rounds(), and
/// compares every byte. `gpus` of all ranks: between GPUs; any error ends the work of all ranks. Null: over
/// the host's transports, on connections of the pair's own. A pair that fails is a result then; its waits end
/// after a quarter of `options.comm_timeout`, before the other ranks lose patience. All ranks call it and get
/// the same pairs.
Result<std::vector<PairResult>> measure_pairs(const BenchOptions& options,
                                              const WorkerEnvironment& environment, const CommWorld& world,
                                              Communicator* gpus);

/// Measures an all-reduce of `options.max_bytes` in each of groups_of() GPUs, and compares its result. All
/// ranks call it and get the same groups. Empty: the nodes of the ranks are not known.
Result<std::vector<GroupResult>> measure_groups(const BenchOptions& options,
                                                const WorkerEnvironment& environment, Communicator& gpus);

}  // namespace ddp::train
