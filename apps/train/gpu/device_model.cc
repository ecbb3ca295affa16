#include "apps/train/gpu/device_model.h"

#include <algorithm>
#include <optional>
#include <utility>

#ifdef DDP_HAVE_CUDA
#include <cstdlib>
#include <type_traits>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/device_net.h"
#include "apps/train/kernels/gpu/body.h"
#include "base/program.h"
#include "base/text.h"
#endif

namespace ddp::train {

#ifdef DDP_HAVE_CUDA

namespace {

/// The oldest GPUs for which cmake/Cuda.cmake compiles, times 10.
constexpr int kLeastCapability = 75;

/// Returns LOCAL_RANK, which every launcher sets for the workers of a node; 0 for a process that is not a
/// rank.
int local_rank() {
  const char* text = std::getenv("LOCAL_RANK");
  return text == nullptr ? 0 : std::max(std::atoi(text), 0);
}

template <class T>
class DeviceModel final : public Model<T> {
 public:
  static Result<std::unique_ptr<Model<T>>> make(ModelLayout layout, std::unique_ptr<DeviceNet<T>> net,
                                                std::string products_by) {
    auto model = std::make_unique<DeviceModel>(std::move(layout), std::move(net), std::move(products_by));
    model->steps_ = DDP_TRY(NetSteps<T>::make(*model->net_, *model));
    return std::unique_ptr<Model<T>>(std::move(model));
  }
  DeviceModel(ModelLayout layout, std::unique_ptr<DeviceNet<T>> net, std::string products_by)
      : Model<T>(std::move(layout)), net_(std::move(net)), products_by_(std::move(products_by)) {}

  DeviceSteps<T>* device_steps() override { return steps_.get(); }
  std::string products_by() const override { return products_by_; }

  kernels::BatchScore forward(const T* images, std::span<const std::uint8_t> labels) override {
    const int batch = static_cast<int>(labels.size());
    put_state();
    must_work(net_->put_batch(images, labels));
    must_work(net_->forward(batch));
    // Backward needs nothing from the host, so the GPU starts it at once.
    must_work(net_->backward(batch));
    must_work(net_->get(running_.span(), net_->memory().next_running));
    const auto score = net_->score();
    if (!score) must_work(score.error());
    this->gradients_and_loss().back() = static_cast<T>(score->loss_sum / batch);
    return *score;
  }

  using OnReady = typename Model<T>::OnReady;
  void backward(const T*, int, const OnReady& on_ready) override {
    must_work(net_->get(this->gradients(), net_->memory().gradients));
    on_ready(0);
  }

  kernels::BatchScore evaluate(const T* images, std::span<const std::uint8_t> labels) override {
    if (!steps_->has_state()) put_state();
    must_work(net_->put_batch(images, labels));
    must_work(net_->evaluate(static_cast<int>(labels.size())));
    const auto score = net_->score();
    if (!score) must_work(score.error());
    return *score;
  }

 private:
  using Model<T>::running_;

  /// Sends what the host may have changed.
  void put_state() {
    must_work(net_->put_parameters(this->parameters()));
    must_work(net_->put(net_->memory().running, running_.span()));
  }

  std::unique_ptr<DeviceNet<T>> net_;
  std::unique_ptr<NetSteps<T>> steps_;
  std::string products_by_;
};

/// Returns an Mlp's products on the current GPU, or null. `by`: as Model::products_by().
template <class T>
std::shared_ptr<MatrixProducts> products_for(const ModelLayout& layout, std::string& by) {
  if (layout.name != "mlp" || !std::is_same_v<T, float>) return nullptr;
  auto products = open_matrix_products();
  by = products ? (*products)->name() : "own kernels (" + products.error().text + ")";
  return products ? std::move(*products) : nullptr;
}

/// Returns the kernels' program for weights of type T, stored as S.
template <class T, class S>
typename DeviceNet<T>::Program program_of(const ModelLayout& layout, const DeviceModelSettings& settings,
                                          std::shared_ptr<MatrixProducts> products) {
  if (layout.name != "mlp") return conv_net_on_device<T, S>(settings.max_batch);
  const auto width = static_cast<int>(layout.parameters.front().shape[0]);
  const auto depth = static_cast<int>(layout.parameters.size() / 2) - 1;
  return mlp_on_device<T, S>(width, depth, static_cast<int>(size_of(layout.parameters)), settings.max_batch,
                             std::move(products), settings.tf32);
}

}  // namespace

Result<> can_use_gpu() {
  const auto gpus = count_gpus();
  return gpus ? Result<>() : usage_error("no usable NVIDIA GPU: ", gpus.error().text);
}

Result<std::string> own_gpu(int local_rank) {
  DDP_TRY(can_use_gpu());
  const auto gpu = DDP_TRY(choose_gpu(count_gpus().value(), local_rank, gpus_are_restricted(), false));
  cudaDeviceProp properties{};
  DDP_TRY(DDP_CUDA_CHECK(cudaGetDeviceProperties, &properties, gpu));
  if (10 * properties.major + properties.minor < kLeastCapability) {
    return usage_error(properties.name, " has compute capability ", properties.major, ".", properties.minor,
                       "; 7.5 is needed");
  }
  return gpu_identity(properties);
}

int gpu_of(int local_rank) {
  const auto gpus = count_gpus();
  return gpus ? local_rank % *gpus : -1;
}

namespace {

std::optional<cudaDeviceProp> properties_of(int local_rank) {
  cudaDeviceProp properties{};
  const int gpu = gpu_of(local_rank);
  if (gpu < 0 || cudaGetDeviceProperties(&properties, gpu) != cudaSuccess) return std::nullopt;
  return properties;
}

}  // namespace

std::string gpu_model(int local_rank) {
  const auto properties = properties_of(local_rank);
  return properties ? properties->name : "unknown GPU";
}

std::string gpu_key(int local_rank) {
  const auto properties = properties_of(local_rank);
  return properties ? gpu_identity(*properties) : concat(host_name(), " ", local_rank);
}

template <class T>
Result<std::unique_ptr<Model<T>>> make_device_model(ModelLayout layout, const DeviceModelSettings& settings) {
  const auto gpus = DDP_TRY(count_gpus());
  DDP_TRY(DDP_CUDA_CHECK(cudaSetDevice, local_rank() % gpus));
  std::string products_by;
  const auto products = products_for<T>(layout, products_by);
  auto program = program_of<T, T>(layout, settings, products);
  if constexpr (std::is_same_v<T, float>) {
    if (settings.bf16) program = program_of<float, kernels::device::Bf16>(layout, settings, products);
  }
  auto net = DDP_TRY(within("--device gpu", DeviceNet<T>::make(std::move(program))));
  return DeviceModel<T>::make(std::move(layout), std::move(net), std::move(products_by));
}

template Result<std::unique_ptr<Model<float>>> make_device_model(ModelLayout, const DeviceModelSettings&);
template Result<std::unique_ptr<Model<double>>> make_device_model(ModelLayout, const DeviceModelSettings&);

namespace {

class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(Communicator& communicator, std::shared_ptr<GraphStreams> streams)
      : communicator_(communicator), streams_(std::move(streams)) {
    communicator_.on_end(graph_owner(streams_));
  }

  Result<> open(std::size_t bytes) {
    begin_ = DDP_TRY(make_cuda_event(true));
    end_ = DDP_TRY(make_cuda_event(true));
    memory_ = communicator_.share_device_memory(bytes);
    if (!memory_.bytes.empty()) return {};
    own_ = DDP_TRY(make_device_bytes(bytes));
    memory_.bytes = std::span(own_.get(), bytes);
    return {};
  }

  const DeviceMemory& memory() const override { return memory_; }
  Result<> put(std::span<const std::byte> from, std::size_t offset) override {
    return copy(memory_.bytes.data() + offset, from.data(), from.size(), cudaMemcpyHostToDevice);
  }
  Result<> get(std::span<std::byte> to) override {
    return copy(to.data(), memory_.bytes.data(), to.size(), cudaMemcpyDeviceToHost);
  }
  void choose(const DeviceOperation& operation) override {
    streams_->graphs.clear();
    operation_ = operation;
  }
  Result<> run() override {
    DDP_TRY(communicator_.enqueue_on_device(operation_, stream()));
    return wait();
  }
  Result<double> replay(int count) override {
    CudaGraph& graph = streams_->graphs[{0, count}];
    if (graph == nullptr) graph = DDP_TRY(capture_graph(stream(), [&] { return enqueue(count); }));
    DDP_TRY(record_time(begin_.get(), stream()));
    DDP_TRY(DDP_CUDA_CHECK(cudaGraphLaunch, graph.get(), stream()));
    DDP_TRY(record_time(end_.get(), stream()));
    DDP_TRY(wait());
    return 1e6 * DDP_TRY(seconds_between(begin_.get(), end_.get()));
  }

 private:
  cudaStream_t stream() const { return streams_->stream.get(); }
  Result<> enqueue(int count) {
    for (int i = 0; i < count; ++i)
      DDP_TRY(communicator_.enqueue_on_device(operation_, stream()));
    return {};
  }
  Result<> wait() {
    const auto is_done = [this] { return cuda_is_done(cudaStreamQuery(stream()), "cudaStreamQuery"); };
    return communicator_.wait_for_device(is_done, kind_text(operation_.kind));
  }
  Result<> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    DDP_TRY(DDP_CUDA_CHECK(cudaMemcpyAsync, to, from, bytes, kind, stream()));
    return wait();
  }

  Communicator& communicator_;
  std::shared_ptr<GraphStreams> streams_;
  DeviceBytes own_;  ///< null: the communicator owns the memory
  DeviceMemory memory_;
  CudaEvent begin_, end_;  ///< of replay()
  DeviceOperation operation_;
};

}  // namespace

Result<std::unique_ptr<DeviceBuffer>> DeviceBuffer::make(Communicator& communicator, std::size_t bytes) {
  auto streams = DDP_TRY(GraphStreams::make());
  auto buffer = std::make_unique<CudaBuffer>(communicator, std::move(streams));
  DDP_TRY(buffer->open(bytes));
  return std::unique_ptr<DeviceBuffer>(std::move(buffer));
}

#else

Result<> can_use_gpu() {
  return Error{ErrorCode::kUsage,
               "this build has no GPU code: CMake found no CUDA compiler, or -DDDP_CUDA=OFF was set"};
}

Result<std::string> own_gpu(int) {
  return can_use_gpu().error();
}

bool gpus_are_given_up() {
  return false;
}

int gpu_of(int) {
  return -1;
}

std::string gpu_model(int) {
  return "unknown GPU";
}

std::string gpu_key(int) {
  return "";
}

template <class T>
Result<std::unique_ptr<Model<T>>> make_device_model(ModelLayout, const DeviceModelSettings&) {
  return can_use_gpu().error();
}

template Result<std::unique_ptr<Model<float>>> make_device_model(ModelLayout, const DeviceModelSettings&);
template Result<std::unique_ptr<Model<double>>> make_device_model(ModelLayout, const DeviceModelSettings&);

Result<std::unique_ptr<DeviceBuffer>> DeviceBuffer::make(Communicator&, std::size_t) {
  return can_use_gpu().error();
}

#endif  // DDP_HAVE_CUDA

}  // namespace ddp::train
