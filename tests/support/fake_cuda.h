#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

namespace ddp {

// The interface of the fake CUDA runtime (fake_cuda.cc) for the fake NCCL and for tests.

/// Puts work into a stream, or into the graph that it captures.
cudaError_t fake_cuda_call(cudaStream_t stream, std::function<void()> work);

/// The same for work that takes time: it is called repeatedly until it returns true, and the stream stands
/// still meanwhile. Each launch of a graph begins with a copy of `work`. A graph keeps `held` for its
/// lifetime, as with cudaGraphRetainUserObject. `held` is released at once outside a capture.
void fake_cuda_enqueue(cudaStream_t stream, std::function<bool()> work, std::shared_ptr<void> held);

/// Returns the number of launchable graphs that exist.
int fake_cuda_graphs();

}  // namespace ddp
