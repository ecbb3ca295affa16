#pragma once

#include "apps/train/gpu/cuda_check.h"
#include "apps/train/kernels/gpu/device_launch.h"

namespace ddp::train {

/// Puts the launches of a program into a stream. The first launch that is refused is kept, and none follows
/// it.
class DeviceRunner {
 public:
  explicit DeviceRunner(cudaStream_t stream) : stream_(stream) {}

  template <class Body>
  void run(const typename Body::Args& args) const {
    if (answer_ == cudaSuccess) answer_ = kernels::device::launch_on_device<Body>(args, stream_);
  }
  Result<> outcome() const { return cuda_check(answer_, "a kernel's launch"); }

 private:
  cudaStream_t stream_;
  mutable cudaError_t answer_ = cudaSuccess;
};

}  // namespace ddp::train
