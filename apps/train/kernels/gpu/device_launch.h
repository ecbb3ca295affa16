#pragma once

#include <cuda_runtime_api.h>

namespace ddp::train::kernels::device {

/// Launches a body on the stream; the .cu files instantiate it for the bodies of the programs. An answer
/// other than cudaSuccess concerns the launch itself; errors of the kernel appear later.
template <class Body>
cudaError_t launch_on_device(const typename Body::Args& args, cudaStream_t stream);

/// Loads a body's machine code, which its first launch would do otherwise. Loading may wait for all running
/// work of the GPU.
template <class Body>
cudaError_t load_on_device();

}  // namespace ddp::train::kernels::device
