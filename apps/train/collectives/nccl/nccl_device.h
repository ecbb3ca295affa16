#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"

namespace ddp::train {

/// The GPU of one rank as NCCL's communicators use it: memory and a stream of its own. Tests use plain memory
/// instead. One thread, except for take().
class NcclDevice {
 public:
  virtual ~NcclDevice() = default;

  /// Returns "GPU 0 (NVIDIA H100)".
  virtual std::string name() const = 0;
  /// Makes it the calling thread's device.
  virtual Result<> take() = 0;
  /// Returns a cudaStream_t.
  virtual void* stream() = 0;
  virtual Result<std::byte*> allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) = 0;
  /// Requires an idle stream. The memory is zero on return.
  virtual Result<> zero(std::byte* data, std::size_t bytes) = 0;
  /// Copies in the stream's order. The host's memory may be reused on return.
  virtual Result<> to_device(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  /// Requires an idle stream. The copy is complete on return. kTimeout: the GPU does not finish the copy.
  virtual Result<> to_host(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  /// Returns true if all work in `stream` is done. Never blocks. Errors of the work appear here.
  virtual Result<bool> is_idle(void* stream) = 0;
};

Result<std::unique_ptr<NcclDevice>> open_cuda_device(int gpu);

}  // namespace ddp::train
