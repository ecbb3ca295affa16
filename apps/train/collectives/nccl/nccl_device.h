#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"

namespace ddp::train {

/// The GPU of one rank as NCCL's communicators use it: some memory, and a stream of its own. Tests put plain
/// memory in its place. One thread, but for take().
class NcclDevice {
 public:
  virtual ~NcclDevice() = default;

  /// "GPU 0 (NVIDIA H100)"
  virtual std::string name() const = 0;
  /// Makes it the calling thread's device.
  virtual Result<> take() = 0;
  /// A cudaStream_t.
  virtual void* stream() = 0;
  virtual Result<std::byte*> allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) = 0;
  virtual Result<> zero(std::byte* data, std::size_t bytes) = 0;
  /// In the stream; the host's memory may be reused when it returns.
  virtual Result<> to_device(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  /// When the stream is idle: complete when it returns.
  virtual Result<> to_host(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  /// Whether all is done that was put into `stream`; blocks nowhere. An error of the work shows here.
  virtual Result<bool> is_idle(void* stream) = 0;
  /// Waits for all that it does, of any stream.
  virtual Result<> finish() = 0;
};

/// Which of `gpus` a rank takes: the one of its local rank; the only one that CUDA_VISIBLE_DEVICES leaves it;
/// with `shared` they are dealt out in turn. Errors (kUsage) say what is missing.
Result<int> choose_gpu(int gpus, int local_rank, bool restricted, bool shared);

/// That GPU, as this process sees it. `restricted`: CUDA_VISIBLE_DEVICES is set. An error (kUsage) without a
/// GPU or driver: "needs an NVIDIA GPU: cudaGetDeviceCount said …".
Result<int> find_gpu(int local_rank, bool restricted, bool shared);
Result<std::unique_ptr<NcclDevice>> open_cuda_device(int gpu);

}  // namespace ddp::train
