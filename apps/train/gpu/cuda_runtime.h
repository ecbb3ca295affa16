#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <source_location>

#include "apps/train/kernels/gpu/device_launch.h"
#include "base/result.h"

namespace ddp::train {

/// What a call of the CUDA run time answered, as a Result: "device_stream.cc:20: cudaMalloc:
/// cudaErrorMemoryAllocation (out of memory)". Every call goes through here:
///
///   if (auto done = cuda_check(cudaMalloc(&data, bytes), "cudaMalloc"); !done) return done;
Result<> cuda_check(cudaError_t answer, const char* call,
                    std::source_location where = std::source_location::current());

/// The same of a question (cudaStreamQuery, cudaEventQuery): whether what was asked for is done.
Result<bool> cuda_is_done(cudaError_t answer, const char* call,
                          std::source_location where = std::source_location::current());

/// How many GPUs the run time sees, at least one. Without any, or without a driver, the error says what
/// cudaGetDeviceCount said: "cudaGetDeviceCount said cudaErrorNoDevice (no CUDA-capable device is detected)".
Result<int> count_gpus();

// What the CUDA run time gives and wants back. What giving back answers nobody can use: it is dropped.

/// Something in a GPU may never end: to give its memory back would wait for that, so nothing is given back
/// any more, and the process should end by _exit. Any thread.
void give_up_gpus();
bool gpus_are_given_up();

struct FreeDeviceMemory {
  void operator()(std::byte* memory) const {
    if (!gpus_are_given_up()) (void)cudaFree(memory);
  }
};
/// Memory of the GPU, on a border of 256 bytes.
using DeviceBytes = std::unique_ptr<std::byte, FreeDeviceMemory>;

struct FreePinnedMemory {
  void operator()(std::byte* memory) const {
    if (!gpus_are_given_up()) (void)cudaFreeHost(memory);
  }
};
/// Memory of the host that the GPU copies from and to while the host goes on.
using PinnedBytes = std::unique_ptr<std::byte, FreePinnedMemory>;

struct EndEvent {
  void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
};
using CudaEvent = std::unique_ptr<CUevent_st, EndEvent>;

struct EndStream {
  void operator()(cudaStream_t stream) const {
    if (!gpus_are_given_up()) (void)cudaStreamDestroy(stream);
  }
};
using CudaStream = std::unique_ptr<CUstream_st, EndStream>;

struct EndGraph {
  void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t graph) const { (void)cudaGraphExecDestroy(graph); }
};
/// A graph that can be launched.
using CudaGraph = std::unique_ptr<CUgraphExec_st, EndGraph>;

/// Zeroed; kSystem with the size when the GPU has no room.
Result<DeviceBytes> make_device_bytes(std::size_t size);
Result<PinnedBytes> make_pinned_bytes(std::size_t size);
/// One that takes no time.
Result<CudaEvent> make_cuda_event();
/// One that waits for no other.
Result<CudaStream> make_cuda_stream();

/// What `enqueue()` (→ Result<>) puts into the stream, as a graph: nothing of it runs now. Calls that wait,
/// or that other streams see, are not allowed meanwhile.
template <class Enqueue>
Result<CudaGraph> capture_graph(cudaStream_t stream, const Enqueue& enqueue);

/// The two halves of that.
Result<> begin_capture(cudaStream_t stream);
/// `enqueued`: how that went. The stream is out of the capture in any case.
Result<CudaGraph> end_capture(cudaStream_t stream, const Result<>& enqueued);

template <class Enqueue>
Result<CudaGraph> capture_graph(cudaStream_t stream, const Enqueue& enqueue) {
  if (auto begun = begin_capture(stream); !begun) return begun.error();
  const Result<> enqueued = enqueue();
  return end_capture(stream, enqueued);
}

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
