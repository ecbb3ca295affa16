#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ddp {

// The interface of the fake CUDA runtime (fake_cuda.cc) for the fake NCCL and for tests. Threads may be ranks
// if each uses its own streams and no graphs.

/// Puts work into a stream, or into the graph that it captures.
cudaError_t fake_cuda_call(cudaStream_t stream, std::function<void()> work);

/// The same for work that takes time: it is called repeatedly until it returns true, and the stream stands
/// still meanwhile. Each launch of a graph begins with a copy of `work`. A graph keeps `held` for its
/// lifetime, as with cudaGraphRetainUserObject. `held` is released at once outside a capture.
void fake_cuda_enqueue(cudaStream_t stream, std::function<bool()> work, std::shared_ptr<void> held);

/// Returns whether the stream is under capture.
bool fake_cuda_is_capturing(cudaStream_t stream);

/// Returns a text that names the calling thread's GPU among those of all nodes.
std::string fake_cuda_gpu();

/// Returns whether an exchange with other ranks waits or runs in a stream, graphs not counted.
bool fake_cuda_exchanges();

/// Returns the number of launchable graphs that exist.
int fake_cuda_graphs();

/// One operation of a captured graph.
struct FakeCudaNode {
  bool is_exchange = false;        ///< from fake_cuda_enqueue()
  std::vector<std::size_t> after;  ///< earlier nodes that must be done before it
};
/// Returns the graph that was captured last, in the order of the calls.
std::vector<FakeCudaNode> fake_cuda_last_graph();

}  // namespace ddp
