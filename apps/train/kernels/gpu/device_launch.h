#pragma once

#include <cuda_runtime_api.h>

namespace ddp::train::kernels::device {

/// Launches a body on the stream; the .cu files instantiate it for the bodies of the programs. An answer
/// other than cudaSuccess concerns the launch itself; errors of the kernel appear later.
template <class Body>
cudaError_t launch_on_device(const typename Body::Args& args, cudaStream_t stream);

}  // namespace ddp::train::kernels::device
