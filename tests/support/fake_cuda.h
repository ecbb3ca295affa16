#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

namespace ddp {

// What the played CUDA run time (fake_cuda.cc) has for what is played beside it, and for tests.

/// Puts work into a stream, or into the graph that is captured there.
cudaError_t fake_cuda_call(cudaStream_t stream, std::function<void()> work);

/// The same for work that takes its time: it is called again and again until it answers true, and the stream
/// stands meanwhile; each launch of a graph begins with a copy of it. `held`: a graph keeps it for its life,
/// as cudaGraphRetainUserObject lets it; outside a capture nobody does.
void fake_cuda_enqueue(cudaStream_t stream, std::function<bool()> work, std::shared_ptr<void> held);

/// How many graphs that can be launched there are.
int fake_cuda_graphs();

}  // namespace ddp
