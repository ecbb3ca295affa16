#pragma once

#include <cuda_runtime_api.h>

namespace ddp::train::kernels::device {

/// Puts a body's launch into the stream; instantiated by the .cu files for the bodies of the programs. An
/// answer other than cudaSuccess is about the launch itself: what goes wrong on the GPU shows later.
template <class Body>
cudaError_t launch_on_device(const typename Body::Args& args, cudaStream_t stream);

}  // namespace ddp::train::kernels::device
