#include "apps/train/gpu/device_net.h"

#include <type_traits>
#include <utility>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train {

namespace {

/// The storage of a product's numbers of type S.
template <class S>
inline constexpr auto kNumberOf = std::is_same_v<S, float> ? StoredNumber::kFloat : StoredNumber::kBf16;

/// Runs a program with a library's matrix products (null: with the own kernel) and own kernels for all else.
/// The last operation on a product is a kernel of its own, since a library's ReLU may turn a nan into zero.
class ProductRunner {
 public:
  ProductRunner(const DeviceRunner& own, MatrixProducts* products, bool tf32)
      : own_(own), products_(products), tf32_(tf32) {}

  template <class Body>
  void run(const typename Body::Args& args) const {
    if constexpr (Delegated<Body>::value) {
      if (products_ != nullptr) return multiply(args, Delegated<Body>{});
    }
    own_.run<Body>(args);
  }

 private:
  template <class Body>
  struct Delegated : std::false_type {};
  template <class S, class C>
  struct Delegated<kernels::device::Gemm<float, S, S, C>> : std::true_type {
    using Finish = kernels::device::FinishProduct<float, S, C>;
    static constexpr auto kFactors = kNumberOf<S>, kResult = kNumberOf<C>;
  };
  template <class Args, class Product>
  void multiply(const Args& args, Product) const {
    const ProductShape shape{args.rows,         args.columns,     args.depth,    args.a_row,
                             args.a_depth,      args.b_depth,     args.b_column, args.c_row,
                             Product::kFactors, Product::kResult, tf32_};
    own_.call([&](cudaStream_t stream) { return products_->enqueue(shape, args.a, args.b, args.c, stream); });
    if (args.end == kernels::device::GemmEnd::kPlain) return;
    own_.run<typename Product::Finish>({args.rows, args.columns, args.c, args.end, args.bias, args.mask});
  }

  const DeviceRunner& own_;
  MatrixProducts* products_;
  bool tf32_;
};

}  // namespace

Result<std::shared_ptr<GraphStreams>> GraphStreams::make() {
  auto streams = std::make_shared<GraphStreams>();
  auto stream = DDP_TRY(make_cuda_stream());
  auto beside = DDP_TRY(make_cuda_stream());
  // An operation between ranks begins at once, not behind the blocks of a large product.
  auto between_ranks = DDP_TRY(make_cuda_stream(StreamPriority::kHighest));
  auto mark = DDP_TRY(make_cuda_event());
  streams->stream = std::move(stream);
  streams->beside = std::move(beside);
  streams->between_ranks = std::move(between_ranks);
  streams->mark = std::move(mark);
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

namespace device = kernels::device;

namespace {

/// Returns a program whose memory is the result of `lay_out(arena)`.
template <class T, class LayOut>
typename DeviceNet<T>::Program program_of(const LayOut& lay_out, int image_border, int max_batch,
                                          const auto& forward, const auto& backward) {
  device::Arena counting;
  using Memory = decltype(lay_out(counting));
  const auto memory = std::make_shared<Memory>(lay_out(counting));
  typename DeviceNet<T>::Program program;
  program.bytes = counting.size();
  program.lay_out = [memory, lay_out](std::byte* bytes) {
    device::Arena arena(bytes);
    *memory = lay_out(arena);
  };
  program.memory = [memory]() -> device::TrainingMemory<T>& { return memory->training; };
  program.forward = [memory, forward](const DeviceRunner& runner, int batch, bool training) {
    forward(runner, *memory, batch, training);
  };
  program.backward = [memory, backward](const DeviceRunner& runner, int batch,
                                        const device::OnReady& on_ready) {
    backward(runner, *memory, batch, on_ready);
  };
  program.update = [memory](const DeviceRunner& runner, const UpdateSettings& settings, T share) {
    device::run_update(runner, memory->training, settings, share);
  };
  program.round_weights = [memory](const DeviceRunner& runner) {
    device::run_round_weights(runner, memory->training);
  };
  program.image_border = image_border;
  program.max_batch = max_batch;
  return program;
}

}  // namespace

template <class T, class S>
typename DeviceNet<T>::Program conv_net_on_device(int max_batch) {
  return program_of<T>(
      [max_batch](device::Arena& arena) { return device::ConvNetMemory<T, S>(arena, max_batch); },
      kImageBorder, max_batch, device::run_conv_net_forward<T, S, DeviceRunner>,
      device::run_conv_net_backward<T, S, DeviceRunner>);
}

template <class T, class S>
typename DeviceNet<T>::Program mlp_on_device(int width, int depth, int parameters, int max_batch,
                                             std::shared_ptr<MatrixProducts> products, bool tf32) {
  using Memory = device::MlpMemory<T, S>;
  MatrixProducts* const multiplied_by = products.get();
  auto program = program_of<T>(
      [=](device::Arena& arena) { return Memory(arena, width, depth, parameters, max_batch); }, 0, max_batch,
      [=](const DeviceRunner& runner, const Memory& memory, int batch, bool training) {
        run_mlp_forward(ProductRunner(runner, multiplied_by, tf32), memory, batch, training);
      },
      [=](const DeviceRunner& runner, const Memory& memory, int batch, const device::OnReady& on_ready) {
        run_mlp_backward(ProductRunner(runner, multiplied_by, tf32), memory, batch, on_ready);
      });
  program.products = std::move(products);
  return program;
}

#define DDP_INSTANTIATE(T, S)                                                     \
  template typename DeviceNet<T>::Program conv_net_on_device<T, S>(int);          \
  template typename DeviceNet<T>::Program mlp_on_device<T, S>(int, int, int, int, \
                                                              std::shared_ptr<MatrixProducts>, bool);
DDP_INSTANTIATE(float, float)
DDP_INSTANTIATE(float, device::Bf16)
DDP_INSTANTIATE(double, double)
#undef DDP_INSTANTIATE

}  // namespace ddp::train
