#include "apps/train/gpu/device_net.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "apps/train/data/image_size.h"
#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/gemm_body.h"
#include "apps/train/kernels/gpu/net_programs.h"
#include "apps/train/kernels/gpu/update_body.h"

namespace ddp::train {

namespace {

/// The storage of a product's numbers of type S.
template <class S>
inline constexpr auto kNumberOf =
    std::is_same_v<S, float> ? ProductShape::Number::kFloat : ProductShape::Number::kBf16;

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

template <class T>
auto DeviceNet<T>::make(Program program) -> Result<std::unique_ptr<DeviceNet>> {
  std::unique_ptr<DeviceNet> net(new DeviceNet(std::move(program)));
  net->bytes_ = DDP_TRY(make_device_bytes(net->program_.bytes));
  net->streams_ = DDP_TRY(GraphStreams::make());
  net->slots_ = DDP_TRY(make_pinned_bytes(sizeof(device::StepSlot) * device::StepSlots::kCount));
  net->program_.lay_out(net->bytes_.get());
  net->program_.memory().step.slots = reinterpret_cast<device::StepSlot*>(net->slots_.get());
  net->own_gradients_ = net->memory().gradients;
  return net;
}

template <class T>
bool DeviceNet<T>::is_idle() const {
  const auto done = streams_->is_idle();
  return done && *done;
}

template <class T>
DeviceNet<T>::~DeviceNet() {
  if (streams_ == nullptr) return;
  if (is_idle()) {
    forget_graphs();
  } else {
    (void)bytes_.release();
    (void)slots_.release();
    (void)new std::shared_ptr<MatrixProducts>(program_.products);  // it owns memory, too
  }
}

template <class T>
Result<> DeviceNet<T>::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return {};
  return DDP_CUDA_CHECK(cudaMemcpyAsync, to, from, bytes, kind, stream());
}

template <class T>
Result<> DeviceNet<T>::put(T* to, std::span<const T> from) {
  return copy(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice);
}

template <class T>
Result<> DeviceNet<T>::get(std::span<T> to, const T* from) {
  DDP_TRY(copy(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost));
  return wait();
}

template <class T>
Result<> DeviceNet<T>::put_parameters(std::span<const T> from) {
  DDP_TRY(put(memory().parameters, from));
  return launch([&](const DeviceRunner& runner) { program_.round_weights(runner); });
}

template <class T>
Result<> DeviceNet<T>::take_back(const std::byte* kept) {
  DDP_TRY(copy(memory().learnt(), kept, memory().learnt_bytes(), cudaMemcpyDeviceToDevice));
  return launch([&](const DeviceRunner& runner) { program_.round_weights(runner); });
}

template <class T>
Result<> DeviceNet<T>::put_batch(const T* images, std::span<const std::uint8_t> labels,
                                 const BatchAddress& to) {
  const std::size_t bytes = labels.size() * image_bytes();
  DDP_TRY(copy(to.images, images, bytes, cudaMemcpyHostToDevice));
  return copy(to.labels, labels.data(), labels.size(), cudaMemcpyHostToDevice);
}

template <class T>
void DeviceNet<T>::place_gradients(std::byte* memory) {
  forget_graphs();
  program_.memory().gradients = memory == nullptr ? own_gradients_ : reinterpret_cast<T*>(memory);
}

template <class T>
Result<> DeviceNet<T>::load() {
  const DeviceRunner loader(stream(), DeviceRunner::Mode::kLoad);
  loader.run<device::Gather<T>>({});
  loader.run<device::AddVector<T>>({});
  for (const int batch : {1, program_.max_batch})  // small batches have kernels of their own
    program_.forward(loader, batch, true);
  program_.backward(loader, 1, [](std::size_t) {});
  program_.update(loader, {}, T(1));
  program_.round_weights(loader);
  return loader.outcome();
}

template <class T>
Result<> DeviceNet<T>::prepare(int batch) {
  if (program_.products == nullptr || !prepared_.insert(batch).second) return {};
  DDP_TRY(launch([&](const DeviceRunner& runner) {
    program_.forward(runner, batch, true);
    program_.backward(runner, batch, [](std::size_t) {});
  }));
  return wait();
}

template <class T>
template <class Enqueue>
Result<> DeviceNet<T>::launch(const Enqueue& enqueue) {
  const DeviceRunner runner(stream(), streams_->beside.get(), streams_->mark.get());
  Result<> enqueued;
  if constexpr (std::is_void_v<decltype(enqueue(runner))>) {
    enqueue(runner);
  } else {
    enqueued = enqueue(runner);
  }
  runner.join_branch();
  return enqueued ? runner.outcome() : enqueued;
}

template <class T>
template <class Enqueue>
Result<> DeviceNet<T>::run(DeviceWork work, int batch, const Enqueue& enqueue) {
  const auto [place, is_new] = streams_->graphs.try_emplace({static_cast<int>(work), batch});
  // The first run is not captured: it loads the kernels and makes an all-reduce's connections, which a
  // capture would have to allow.
  if (!use_graphs_ || is_new) return launch(enqueue);
  CudaGraph& graph = place->second;
  if (!graph) graph = DDP_TRY(capture_graph(stream(), [&] { return launch(enqueue); }));
  return DDP_CUDA_CHECK(cudaGraphLaunch, graph.get(), stream());
}

template <class T>
Result<> DeviceNet<T>::forward(int batch) {
  return run(DeviceWork::kForward, batch,
             [&](const DeviceRunner& runner) { program_.forward(runner, batch, true); });
}

template <class T>
Result<> DeviceNet<T>::backward(int batch) {
  return run(DeviceWork::kBackward, batch,
             [&](const DeviceRunner& runner) { program_.backward(runner, batch, [](std::size_t) {}); });
}

template <class T>
Result<> DeviceNet<T>::evaluate(int batch) {
  return run(DeviceWork::kEvaluate, batch,
             [&](const DeviceRunner& runner) { program_.forward(runner, batch, false); });
}

/// Enqueues the backward pass of a batch that is not the step's last one, and adds up the gradients.
template <class T>
Result<> DeviceNet<T>::enqueue_earlier_batch(const DeviceRunner& runner, int batch, bool is_first,
                                             std::byte* earlier) {
  program_.backward(runner, batch, [](std::size_t) {});
  if (is_first) return copy(earlier, memory().gradients, gradient_bytes(), cudaMemcpyDeviceToDevice);
  runner.run<device::AddVector<T>>({memory().count + 1, reinterpret_cast<T*>(earlier), memory().gradients});
  return {};
}

template <class T>
Result<> DeviceNet<T>::enqueue_backward(const DeviceRunner& runner, int batch,
                                        const Hyperparameters& hyperparameters, bool adds_earlier) {
  const auto& buckets = hyperparameters.buckets;
  const cudaStream_t sums = streams_->between_ranks.get();
  const auto add_earlier = [&](const DeviceRunner& to, const GradientBucket& range) {
    if (!adds_earlier) return;
    to.run<device::AddVector<T>>({static_cast<int>(range.end - range.begin), memory().gradients + range.begin,
                                  reinterpret_cast<T*>(hyperparameters.earlier) + range.begin});
  };
  Result<> enqueued;
  std::size_t next = 0;
  program_.backward(runner, batch, [&](std::size_t begin) {
    if (enqueued && hyperparameters.inject_nan) {
      const T nan = std::numeric_limits<T>::quiet_NaN();
      enqueued = copy(memory().gradients + begin, &nan, sizeof nan, cudaMemcpyHostToDevice);
    }
    if (!hyperparameters.all_reduce) return;
    for (; enqueued && next < buckets.size() && buckets[next].begin >= begin; ++next) {
      enqueued = runner.precede(sums);  // the sum runs beside the later launches
      if (!enqueued) return;
      const auto [first, end] = buckets[next];
      const DeviceRunner own(sums);
      add_earlier(own, buckets[next]);
      enqueued = own.outcome();
      if (enqueued) enqueued = hyperparameters.all_reduce(memory().gradients + first, end - first, sums);
    }
  });
  if (!hyperparameters.all_reduce) add_earlier(runner, {0, static_cast<std::size_t>(memory().count) + 1});
  if (next == 0) return enqueued;
  // Also after an error: whoever waits for the net's stream then waits for the sums that are under way.
  const Result<> joined = order_streams(sums, stream(), streams_->mark.get());
  return enqueued ? joined : enqueued;
}

template <class T>
Result<> DeviceNet<T>::enqueue_step(const DeviceRunner& runner, int samples,
                                    const Hyperparameters& hyperparameters, const ResidentImages* held) {
  Memory& m = program_.memory();
  if (hyperparameters.kept != nullptr)
    DDP_TRY(copy(hyperparameters.kept, m.learnt(), m.learnt_bytes(), cudaMemcpyDeviceToDevice));
  const int most = hyperparameters.batch == 0 ? samples : hyperparameters.batch;
  const int batches = device::divide_up(samples, most);
  for (int i = 0; i < batches; ++i) {
    const int batch = std::min(most, samples - i * most);
    const Memory whole = m;  // launches copy the addresses
    // A batch continues the statistics of the one before it. A dropped step keeps none of them.
    if (i > 0) m.running = m.next_running;
    if (held != nullptr) {
      runner.run<device::Gather<T>>({batch, program_.image_border, held->images, held->labels,
                                     held->order + i * most, m.step, m.images, m.labels});
    } else if (hyperparameters.sent != nullptr) {
      const BatchAddress sent = address_in(hyperparameters.sent, static_cast<std::size_t>(i));
      m.images = sent.images;
      m.labels = sent.labels;
    }
    program_.forward(runner, batch, true);
    const auto done = i + 1 < batches ? enqueue_earlier_batch(runner, batch, i == 0, hyperparameters.earlier)
                                      : enqueue_backward(runner, batch, hyperparameters, batches > 1);
    m = whole;
    if (!done) return done;
  }
  program_.update(runner, hyperparameters.update, T(1) / static_cast<T>(hyperparameters.ranks * batches));
  return {};
}

template <class T>
Result<> DeviceNet<T>::step(int samples, const device::StepInput& input,
                            const Hyperparameters& hyperparameters, const ResidentImages* held) {
  memory().step.slots[launched_ % device::StepSlots::kCount].input = input;
  const auto enqueue = [&](const DeviceRunner& runner) {
    return enqueue_step(runner, samples, hyperparameters, held);
  };
  const DeviceWork work = held != nullptr ? DeviceWork::kHeldStep : DeviceWork::kStep;
  Result<> done;
  if (hyperparameters.as_graph) {
    done = run(work, samples, enqueue);
  } else {
    streams_->graphs.try_emplace({static_cast<int>(work), samples});  // counts as the first run of this graph
    done = launch(enqueue);
  }
  if (done) ++launched_;
  return done;
}

template <class T>
Result<kernels::BatchScore> DeviceNet<T>::score() {
  device::DeviceScore score{};
  DDP_TRY(copy(&score, memory().score, sizeof score, cudaMemcpyDeviceToHost));
  DDP_TRY(wait());
  return kernels::BatchScore{score.loss_sum, score.correct};
}

template <class T>
Result<device::StepState> DeviceNet<T>::state() {
  device::StepState state{};
  DDP_TRY(copy(&state, memory().state, sizeof state, cudaMemcpyDeviceToHost));
  DDP_TRY(wait());
  return state;
}

template <class T>
Result<> DeviceNet<T>::wait() {
  return DDP_CUDA_CHECK(cudaStreamSynchronize, stream());
}

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
  program.update = [memory](const DeviceRunner& runner, const device::UpdateSettings& settings, T share) {
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

template class DeviceNet<float>;
template class DeviceNet<double>;
#define DDP_INSTANTIATE(T, S)                                                     \
  template typename DeviceNet<T>::Program conv_net_on_device<T, S>(int);          \
  template typename DeviceNet<T>::Program mlp_on_device<T, S>(int, int, int, int, \
                                                              std::shared_ptr<MatrixProducts>, bool);
DDP_INSTANTIATE(float, float)
DDP_INSTANTIATE(float, device::Bf16)
DDP_INSTANTIATE(double, double)
#undef DDP_INSTANTIATE

namespace {

template <class T>
DeviceOperation all_reduce(void* numbers, std::size_t count) {
  constexpr auto kType = std::is_same_v<T, double> ? NumberType::kFloat64 : NumberType::kFloat32;
  return {CollectiveKind::kAllReduce, numbers, count, kType};
}

kernels::device::UpdateSettings update_settings(const DeviceStepSettings& settings) {
  const OptimizerSettings& optimizer = settings.optimizer;
  return {optimizer.kind == OptimizerKind::kAdamw,
          optimizer.momentum,
          optimizer.beta1,
          optimizer.beta2,
          optimizer.epsilon,
          optimizer.weight_decay,
          settings.clip_value,
          settings.clip_norm};
}

}  // namespace

template <class T>
auto NetSteps<T>::make(DeviceNet<T>& net, Model<T>& model) -> Result<std::unique_ptr<NetSteps>> {
  std::unique_ptr<NetSteps> steps(new NetSteps(net, model));
  static_assert(DeviceSteps<T>::kMaxInFlight == kernels::device::StepSlots::kCount);
  for (CudaEvent& event : steps->events_)
    event = DDP_TRY(make_cuda_event());
  return steps;
}

template <class T>
NetSteps<T>::~NetSteps() {
  if (net_.is_idle()) return;
  (void)batches_.release();
  for (DeviceBytes* bytes : {&sent_, &kept_, &earlier_, &images_, &order_})
    (void)bytes->release();
}

template <class T>
Result<> NetSteps<T>::attach(const DeviceStepSettings& settings) {
  DDP_TRY(net_.load());
  net_.forget_graphs();
  ranks_ = settings.ranks;
  drop_timeout_ = settings.drop_timeout;
  hyperparameters_ = {};
  hyperparameters_.update = update_settings(settings);
  hyperparameters_.ranks = ranks_ == nullptr ? 1 : ranks_->world_size();
  if (settings.undo && kept_ == nullptr) kept_ = DDP_TRY(make_device_bytes(net_.memory().learnt_bytes()));
  max_batches_ = static_cast<std::size_t>(settings.batches);
  if (max_batches_ > 1 && earlier_ == nullptr) earlier_ = DDP_TRY(make_device_bytes(net_.gradient_bytes()));
  hyperparameters_.batch = settings.batch;
  hyperparameters_.earlier = earlier_.get();
  hyperparameters_.sent = sent_.get();
  hyperparameters_.kept = settings.undo ? kept_.get() : nullptr;
  if (ranks_ == nullptr) return {};
  hyperparameters_.buckets = settings.buckets;
  if (hyperparameters_.buckets.empty()) hyperparameters_.buckets = {{0, net_.gradient_bytes() / sizeof(T)}};
  hyperparameters_.all_reduce = [ranks = ranks_](void* numbers, std::size_t count, cudaStream_t stream) {
    return ranks->enqueue_on_device(all_reduce<T>(numbers, count), stream);
  };
  ranks_->on_end(net_.graph_owner());
  if (const auto memory = ranks_->share_device_memory(net_.gradient_bytes()); !memory.bytes.empty())
    net_.place_gradients(memory.bytes.data());
  return {};
}

template <class T>
void NetSteps<T>::detach() {
  net_.place_gradients(nullptr);  // also forgets the graphs
  hyperparameters_ = {};
  ranks_ = nullptr;
}

template <class T>
Result<bool> NetSteps<T>::hold(const Dataset& data) {
  // Holds the images once for all epochs, since holding forgets the graphs. Else this rank alone might make a
  // first step where the others replay a graph.
  if (hold_size_ == data.size()) return held_.images != nullptr;
  hold_size_ = data.size();
  held_ = {};
  if (data.draw) return false;
  const std::size_t image_bytes = data.size() * kImagePixels;
  auto images = make_device_bytes(image_bytes + data.size());
  auto order = make_device_bytes(data.size() * sizeof(std::uint32_t));
  if (!images || !order) return false;  // no room: the host sends batches
  DDP_TRY(net_.copy(images->get(), data.images.data(), data.images.size(), cudaMemcpyHostToDevice));
  DDP_TRY(
      net_.copy(images->get() + image_bytes, data.labels.data(), data.labels.size(), cudaMemcpyHostToDevice));
  DDP_TRY(net_.wait());
  images_ = std::move(*images);
  order_ = std::move(*order);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(images_.get());
  held_ = {bytes, bytes + image_bytes, reinterpret_cast<const std::uint32_t*>(order_.get())};
  net_.forget_graphs();
  return true;
}

template <class T>
Result<> NetSteps<T>::set_order(std::span<const std::uint32_t> order) {
  DDP_TRY(net_.copy(order_.get(), order.data(), order.size_bytes(), cudaMemcpyHostToDevice));
  return net_.wait();
}

template <class T>
Result<> NetSteps<T>::take(Optimizer<T>& optimizer) {
  const auto& m = net_.memory();
  DDP_TRY(net_.put_parameters(model_.parameters()));
  DDP_TRY(net_.put(m.running, std::span<const T>(model_.running_statistics())));
  T* to = m.first;
  for (const auto& one : optimizer.state()) {
    DDP_TRY(net_.put(to, std::span<const T>(one.values)));
    to = m.second;
  }
  kernels::device::StepState state{};
  state.steps = optimizer.steps();
  DDP_TRY(net_.copy(m.state, &state, sizeof state, cudaMemcpyHostToDevice));
  const auto taken = net_.wait();
  has_state_ = taken.has_value();
  return taken;
}

template <class T>
Result<> NetSteps<T>::give(Optimizer<T>& optimizer) {
  const auto& m = net_.memory();
  DDP_TRY(net_.get(model_.parameters(), m.parameters));
  DDP_TRY(net_.get(model_.running_statistics(), m.running));
  const T* from = m.first;
  for (const auto& one : optimizer.state()) {
    DDP_TRY(net_.get(one.values, from));
    from = m.second;
  }
  const auto state = DDP_TRY(net_.state());
  optimizer.set_steps(state.steps);
  has_state_ = false;
  return {};
}

/// Uses pinned memory: a copy from other memory waits for the stream, and so for an all-reduce that may never
/// end.
template <class T>
Result<> NetSteps<T>::send(const T* images, std::span<const std::uint8_t> labels) {
  if (batches_ == nullptr) {
    const std::size_t step_bytes = net_.batch_bytes() * max_batches_;
    auto batches = DDP_TRY(make_pinned_bytes(step_bytes * DeviceSteps<T>::kMaxInFlight));
    auto sent = DDP_TRY(make_device_bytes(step_bytes));
    batches_ = std::move(batches);
    sent_ = std::move(sent);
    hyperparameters_.sent = sent_.get();
  }
  const std::size_t step = launched_ % DeviceSteps<T>::kMaxInFlight;
  const auto from = net_.address_in(batches_.get(), step * max_batches_ + sent_count_);
  std::memcpy(from.images, images, net_.image_bytes() * labels.size());
  std::memcpy(from.labels, labels.data(), labels.size());
  return net_.put_batch(from.images, {from.labels, labels.size()},
                        net_.address_in(sent_.get(), sent_count_++));
}

template <class T>
Result<> NetSteps<T>::launch(const DeviceStep& step) {
  hyperparameters_.as_graph = step.as_graph;
  hyperparameters_.inject_nan = step.inject_nan;
  const bool held = std::exchange(sent_count_, 0) == 0;
  for (const GradientBucket& bucket : hyperparameters_.buckets)
    ranks_->launched(all_reduce<T>(nullptr, bucket.end - bucket.begin));
  DDP_TRY(net_.step(static_cast<int>(step.size), {step.lr, step.first}, hyperparameters_,
                    held ? &held_ : nullptr));
  DDP_TRY(DDP_CUDA_CHECK(cudaEventRecord, event(launched_), net_.stream()));
  ++launched_;
  return {};
}

template <class T>
Result<> NetSteps<T>::wait_for(cudaEvent_t event) {
  if (ranks_ == nullptr) return DDP_CUDA_CHECK(cudaEventSynchronize, event);
  const auto is_done = [event] { return cuda_is_done(cudaEventQuery(event), "cudaEventQuery"); };
  Result<> waited;
  for (std::size_t i = 0; waited && i < hyperparameters_.buckets.size(); ++i)
    waited = ranks_->wait_for_device(is_done, "all-reduce");
  return waited;
}

template <class T>
Result<DeviceOutcome> NetSteps<T>::finish() {
  DDP_TRY(wait_for(event(finished_)));
  const kernels::device::StepOutcome& outcome = net_.outcome(finished_++);
  return DeviceOutcome{outcome.loss, outcome.skip == 0, outcome.norm};
}

template <class T>
Result<> NetSteps<T>::drop() {
  const bool half = in_flight() != 0;
  finished_ = launched_;
  // A revoke or a lost peer may be unnoticed until now. This wait notices it, and so aborts the all-reduces.
  const auto is_idle = [this]() -> Result<bool> { return net_.is_idle(); };
  if (ranks_ != nullptr && !net_.is_idle()) (void)ranks_->wait_for_device(is_idle, "all-reduce");
  // An aborted all-reduce lets the stream continue; its result is undefined.
  DDP_TRY(net_.wait(drop_timeout_));
  if (!half || hyperparameters_.kept == nullptr) return {};
  DDP_TRY(net_.take_back(hyperparameters_.kept));
  return net_.wait(drop_timeout_);
}

template class NetSteps<float>;
template class NetSteps<double>;

}  // namespace ddp::train
