#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "apps/train/bench/bench_report.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/device_operations.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/result.h"

namespace ddp::train {

/// Where a bench's operations work, in place: the GPU's memory where the communicator has operations there,
/// else memory that the ranks of a node share, as a training's gradients do, else this rank's own. Kept for
/// all sizes. The communicator must outlive it.
class BenchMemory {
 public:
  /// All ranks call it with the same size.
  static Result<std::unique_ptr<BenchMemory>> make(Communicator& communicator, std::size_t bytes);

  Communicator& communicator() const { return communicator_; }
  /// Null: the host's.
  DeviceOperations* device() const { return device_; }
  std::span<float> values() const { return values_; }

 private:
  explicit BenchMemory(Communicator& communicator)
      : communicator_(communicator), device_(communicator.device_operations()) {}

  Communicator& communicator_;
  DeviceOperations* device_;
  AlignedBuffer<float> own_;
  std::span<float> values_;
};

/// One operation on a buffer of floats; what nccl-tests calls its size is `bytes` of it.
class MeasuredOperation {
 public:
  /// In `memory`, which is used for its life.
  MeasuredOperation(BenchOperation kind, BenchMemory& memory, std::size_t bytes);

  std::size_t count() const { return count_; }
  Result<> fill();
  /// Complete when it returns; on a GPU in its stream then.
  Result<> start();
  /// For all that was started.
  Result<> wait();
  /// Elements, after fill() and one operation.
  Result<std::uint64_t> wrong();

 private:
  double expected(std::size_t place) const;
  bool is_result(std::size_t place) const;
  Result<> start_on_device(DeviceOperations& device);
  Result<> run_on_host();

  BenchOperation kind_;
  BenchMemory& memory_;
  int rank_;
  int world_;
  std::size_t count_ = 0;
  std::span<float> buffer_;  ///< in `memory`
};

}  // namespace ddp::train
