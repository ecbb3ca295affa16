#pragma once

#include <cuda_runtime_api.h>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// Launches a body on the stream; the .cu files instantiate it for the bodies of the programs. An answer
/// other than cudaSuccess concerns the launch itself; errors of the kernel appear later.
template <class Body>
cudaError_t launch_on_device(const typename Body::Args& args, cudaStream_t stream);

/// Loads a body's machine code, which its first launch would do otherwise. Loading may wait for all running
/// work of the GPU.
template <class Body>
cudaError_t load_on_device();

#ifdef __CUDACC__

__device__ __forceinline__ void end_phase() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");  // of load_ahead()
#endif
  __syncthreads();
}

template <class Body>
__device__ __forceinline__ void run_phases(ThreadIndex at, typename Body::Shared& shared,
                                           const typename Body::Args& args) {
  typename Body::Local local;
  const int phases = Body::phases(args);
#pragma unroll 1
  for (int phase = 0; phase < phases; ++phase) {
    if (phase != 0) end_phase();
    Body::phase(phase, at, shared, local, args);
  }
}

/// Returns true if this block is the last of the grid to call it. All threads of the block must call it, and
/// all get the same answer. The threads of the last block see what all threads of all blocks wrote before the
/// call:
///
/// - The first barrier puts the writes of a block's threads before the fence of its thread 0. The fence
///   puts them before its ticket, since a fence covers all that its thread has seen, not only its writes.
/// - Tickets are taken in one order. The thread that takes the last one has all others before it. The fence
///   after the ticket puts them before its reads; the second barrier puts them before its block's reads.
/// - A fence of the whole GPU also empties this SM's L1. A line may lie there that another block of this SM
///   has read, or a neighbor of what this block wrote. So plain reads are correct. The compiler may not use
///   the path for constant data (ld.global.nc): it sees the writes in the same kernel, and no pointer of Args
///   is __restrict__.
///
/// Cooperative groups' grid.sync() takes the same steps. atomicInc wraps to 0 at the last block. The next
/// launch in the stream sees that, like everything that this launch wrote.
__device__ __forceinline__ bool ends_last(unsigned* ticket) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

/// Returns the number of blocks per processor that registers must suffice for; 0: the compiler decides.
template <class Body>
constexpr int min_blocks() {
  if constexpr (kHasLast<Body>) {
    return min_blocks<typename Body::First>();
  } else if constexpr (requires { Body::kMinBlocks; }) {
    return Body::kMinBlocks;
  } else {
    return 0;
  }
}

template <class Body>
__global__ void __launch_bounds__(Body::kThreads, min_blocks<Body>())
    run_body(const __grid_constant__ typename Body::Args args) {
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  if constexpr (kHasLast<Body>) {
    // One memory for both: the barriers of ends_last() separate their uses.
    __shared__ union Shared {
      typename Body::First::Shared first;
      typename Body::Last::Shared last;
    } shared;
    run_phases<typename Body::First>({block, thread}, shared.first, args.first);
    if (args.ticket == nullptr || !ends_last(args.ticket)) return;
    run_phases<typename Body::Last>({0, thread}, shared.last, args.last);
  } else {
    __shared__ typename Body::Shared shared;
    run_phases<Body>({block, thread}, shared, args);
  }
}

template <class Body>
int blocks_of(const typename Body::Args& args) {
  if constexpr (kHasLast<Body>) {
    return Body::First::blocks(args.first);
  } else {
    return Body::blocks(args);
  }
}

template <class Body>
cudaError_t launch_on_device(const typename Body::Args& args, cudaStream_t stream) {
  run_body<Body><<<static_cast<unsigned>(blocks_of<Body>(args)), Body::kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

template <class Body>
cudaError_t load_on_device() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, run_body<Body>);
}

#endif  // __CUDACC__

}  // namespace ddp::train::kernels::device

/// Instantiates the load and the launch of a body, in a .cu file.
#define DDP_LAUNCH(...)                               \
  template cudaError_t load_on_device<__VA_ARGS__>(); \
  template cudaError_t launch_on_device<__VA_ARGS__>(const typename __VA_ARGS__::Args&, cudaStream_t)
