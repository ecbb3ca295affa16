#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "apps/train/collectives/communicator.h"
#include "base/result.h"

namespace ddp::train {

/// GPU memory in which operations between ranks are measured. Repeated operations are one captured graph: a
/// non-blocking NCCL communicator starts a thread for each call, and none for a graph. One thread; errors as
/// in Communicator.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  /// All ranks call it with the same size. `communicator` has operations on GPU memory, and outlives the
  /// buffer.
  static Result<std::unique_ptr<DeviceBuffer>> make(Communicator& communicator, std::size_t bytes);

  virtual const DeviceMemory& memory() const = 0;
  /// Copy from and to the host, at the beginning of the memory.
  virtual Result<> put(std::span<const std::byte> from) = 0;
  virtual Result<> get(std::span<std::byte> to) = 0;
  /// Sets the operation of the next calls.
  virtual void choose(const DeviceOperation& operation) = 0;
  /// Carries out the operation once, without a graph. The first one makes the connections.
  virtual Result<> run() = 0;
  /// Carries out the operation `count` times, as one graph, which the first call with this count captures.
  virtual Result<> replay(int count) = 0;
};

}  // namespace ddp::train
