#include "apps/train/gpu/device_buffer.h"

#include "apps/train/gpu/device_model.h"

#ifdef DDP_HAVE_CUDA

#include <utility>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/graph_streams.h"

namespace ddp::train {

namespace {

class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(Communicator& communicator, std::shared_ptr<GraphStreams> streams)
      : communicator_(communicator), streams_(std::move(streams)) {
    communicator_.on_end(graph_owner(streams_));
  }

  Result<> open(std::size_t bytes) {
    memory_ = communicator_.share_device_memory(bytes);
    if (!memory_.bytes.empty()) return {};
    auto own = make_device_bytes(bytes);
    if (!own) return own.error();
    own_ = std::move(*own);
    memory_.bytes = std::span(own_.get(), bytes);
    return {};
  }

  const DeviceMemory& memory() const override { return memory_; }
  Result<> put(std::span<const std::byte> from) override {
    return copy(memory_.bytes.data(), from.data(), from.size(), cudaMemcpyHostToDevice);
  }
  Result<> get(std::span<std::byte> to) override {
    return copy(to.data(), memory_.bytes.data(), to.size(), cudaMemcpyDeviceToHost);
  }
  void choose(const DeviceOperation& operation) override {
    streams_->graphs.clear();
    operation_ = operation;
  }
  Result<> run() override {
    if (auto done = communicator_.enqueue_on_device(operation_, stream()); !done) return done;
    return wait();
  }
  Result<> replay(int count) override {
    CudaGraph& graph = streams_->graphs[{0, count}];
    if (graph == nullptr) {
      auto captured = capture_graph(stream(), [&] { return enqueue(count); });
      if (!captured) return captured.error();
      graph = std::move(*captured);
    }
    const auto launched = cuda_check(cudaGraphLaunch(graph.get(), stream()), "cudaGraphLaunch");
    return launched ? wait() : launched;
  }

 private:
  cudaStream_t stream() const { return streams_->stream.get(); }
  Result<> enqueue(int count) {
    Result<> done;
    for (int i = 0; done && i < count; ++i)
      done = communicator_.enqueue_on_device(operation_, stream());
    return done;
  }
  Result<> wait() {
    const auto is_done = [this] { return cuda_is_done(cudaStreamQuery(stream()), "cudaStreamQuery"); };
    return communicator_.wait_for_device(is_done, kind_text(operation_.kind));
  }
  Result<> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    const auto begun = cuda_check(cudaMemcpyAsync(to, from, bytes, kind, stream()), "cudaMemcpyAsync");
    return begun ? wait() : begun;
  }

  Communicator& communicator_;
  std::shared_ptr<GraphStreams> streams_;
  DeviceBytes own_;  ///< null: the communicator owns the memory
  DeviceMemory memory_;
  DeviceOperation operation_;
};

}  // namespace

Result<std::unique_ptr<DeviceBuffer>> DeviceBuffer::make(Communicator& communicator, std::size_t bytes) {
  auto streams = GraphStreams::make();
  if (!streams) return streams.error();
  auto buffer = std::make_unique<CudaBuffer>(communicator, std::move(*streams));
  if (auto opened = buffer->open(bytes); !opened) return opened.error();
  return std::unique_ptr<DeviceBuffer>(std::move(buffer));
}

}  // namespace ddp::train

#else

namespace ddp::train {

Result<std::unique_ptr<DeviceBuffer>> DeviceBuffer::make(Communicator&, std::size_t) {
  return can_use_gpu().error();
}

}  // namespace ddp::train

#endif  // DDP_HAVE_CUDA
