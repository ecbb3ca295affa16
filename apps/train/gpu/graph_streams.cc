#include "apps/train/gpu/graph_streams.h"

namespace ddp::train {

Result<std::shared_ptr<GraphStreams>> GraphStreams::make() {
  auto streams = std::make_shared<GraphStreams>();
  auto stream = make_cuda_stream();
  if (!stream) return stream.error();
  auto beside = make_cuda_stream();
  if (!beside) return beside.error();
  // An operation between ranks begins at once, not behind the blocks of a large product.
  auto between_ranks = make_cuda_stream(StreamPriority::kHighest);
  if (!between_ranks) return between_ranks.error();
  auto mark = make_cuda_event();
  if (!mark) return mark.error();
  streams->stream = std::move(*stream);
  streams->beside = std::move(*beside);
  streams->between_ranks = std::move(*between_ranks);
  streams->mark = std::move(*mark);
  return streams;
}

GraphStreams::~GraphStreams() {
  if (stream == nullptr) return;
  const auto done = is_idle();
  if (done && *done) return;
  for (auto& [key, graph] : graphs)
    (void)graph.release();
  (void)stream.release();
  (void)beside.release();
  (void)between_ranks.release();
}

Result<bool> GraphStreams::is_idle() const {
  Result<bool> done = true;
  for (const CudaStream* one : {&stream, &beside, &between_ranks}) {
    if (done && *done) done = cuda_is_done(cudaStreamQuery(one->get()), "cudaStreamQuery");
  }
  return done;
}

GraphOwner graph_owner(const std::shared_ptr<GraphStreams>& streams) {
  GraphOwner owner;
  owner.abandon_capture = [streams] { abandon_capture(streams->stream.get()); };
  owner.is_idle = [streams] {
    const auto done = streams->is_idle();
    return !done || *done;  // a GPU that has failed runs nothing
  };
  owner.drop = [streams] { streams->graphs.clear(); };
  return owner;
}

}  // namespace ddp::train
