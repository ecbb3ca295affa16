#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/train/bench/bench_report.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/device_buffer.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/result.h"

namespace ddp::train {

/// Memory in which the operations of a bench work in place: the GPU's memory if the communicator has
/// operations there. Otherwise memory that the ranks of a node share, like a training's gradients, or this
/// rank's own memory. It is kept for all sizes. The communicator must outlive it.
class BenchMemory {
 public:
  /// All ranks call it with the same size.
  static Result<std::unique_ptr<BenchMemory>> make(Communicator& communicator, std::size_t bytes);

  Communicator& communicator() const { return communicator_; }
  /// Null: the buffer is in host memory.
  DeviceBuffer* device() const { return device_.get(); }
  std::span<float> values() const { return values_; }
  /// Returns "symmetric windows", "registered" or "not registered"; empty for host memory.
  std::string registration() const;

 private:
  explicit BenchMemory(Communicator& communicator) : communicator_(communicator) {}

  Communicator& communicator_;
  std::unique_ptr<DeviceBuffer> device_;
  AlignedBuffer<float> own_;
  std::span<float> values_;
};

/// One operation on a buffer of floats; nccl-tests' "size" is `bytes` of it.
class MeasuredOperation {
 public:
  /// The operation works in `memory`, which must outlive it.
  MeasuredOperation(BenchOperation kind, BenchMemory& memory, std::size_t bytes);

  std::size_t count() const { return count_; }
  Result<> fill();
  Result<> run();
  /// Carries out the operation `count` times without a pause of the GPU; only in GPU memory.
  Result<> replay(int count) { return memory_.device()->replay(count); }
  /// Returns the number of wrong elements after fill() and one operation.
  Result<std::uint64_t> wrong();

 private:
  double expected(std::size_t place) const;
  bool is_result(std::size_t place) const;
  BenchOperation kind_;
  BenchMemory& memory_;
  int rank_;
  int world_;
  std::size_t count_ = 0;
  std::span<float> buffer_;  ///< in `memory`
};

}  // namespace ddp::train
