#pragma once

#include "apps/train/kernels/device/body.h"
#include "apps/train/kernels/device/device_launch.h"

namespace ddp::train::kernels::device {

template <class Body>
__global__ void __launch_bounds__(Body::kThreads) run_body(const __grid_constant__ typename Body::Args args) {
  __shared__ typename Body::Shared shared;
  typename Body::Local local;
  const Place at{static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x)};
  const int phases = Body::phases(args);
#pragma unroll 1
  for (int phase = 0; phase < phases; ++phase) {
    if (phase != 0) __syncthreads();
    Body::phase(phase, at, shared, local, args);
  }
}

template <class Body>
cudaError_t launch_on_device(const typename Body::Args& args, cudaStream_t stream) {
  run_body<Body><<<static_cast<unsigned>(Body::blocks(args)), Body::kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace ddp::train::kernels::device

/// Instantiates the launch of Body<float, …> and Body<double, …>.
#define DDP_LAUNCH(...) \
  template cudaError_t launch_on_device<__VA_ARGS__>(const typename __VA_ARGS__::Args&, cudaStream_t)
