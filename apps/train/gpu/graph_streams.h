#pragma once

#include <map>
#include <memory>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "base/result.h"

namespace ddp::train {

/// A stream, one for a branch of its work, one for operations between ranks, and the graphs captured from
/// them. They are shared with the end of the operations in the graphs. Their destruction frees nothing while
/// a stream is at work: freeing could wait forever for an operation whose ranks are gone. Such a process is
/// about to end.
struct GraphStreams {
  static Result<std::shared_ptr<GraphStreams>> make();
  ~GraphStreams();

  Result<bool> is_idle() const;

  CudaStream stream;
  CudaStream beside;
  CudaStream between_ranks;
  CudaEvent mark;  ///< for order_streams()
  std::map<std::pair<int, int>, CudaGraph> graphs;
};

/// The calls of the owner are valid at any time, even after the destruction of what made the graphs.
GraphOwner graph_owner(const std::shared_ptr<GraphStreams>& streams);

}  // namespace ddp::train
