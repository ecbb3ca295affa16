#include "apps/train/gpu/device_net.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/product_runner.h"
#include "apps/train/kernels/gpu/bf16.h"
#include "apps/train/kernels/gpu/conv_net_program.h"
#include "apps/train/kernels/gpu/gather_body.h"
#include "apps/train/kernels/gpu/mlp_program.h"

namespace ddp::train {

namespace device = kernels::device;

template <class T>
auto DeviceNet<T>::make(Program program) -> Result<std::unique_ptr<DeviceNet>> {
  std::unique_ptr<DeviceNet> net(new DeviceNet(std::move(program)));
  auto bytes = make_device_bytes(net->program_.bytes);
  if (!bytes) return bytes.error();
  net->bytes_ = std::move(*bytes);
  auto streams = GraphStreams::make();
  if (!streams) return streams.error();
  net->streams_ = std::move(*streams);
  auto slots = make_pinned_bytes(sizeof(device::StepSlot) * device::StepSlots::kCount);
  if (!slots) return slots.error();
  net->slots_ = std::move(*slots);
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
  return cuda_check(cudaMemcpyAsync(to, from, bytes, kind, stream()), "cudaMemcpyAsync");
}

template <class T>
Result<> DeviceNet<T>::put(T* to, std::span<const T> from) {
  return copy(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice);
}

template <class T>
Result<> DeviceNet<T>::get(std::span<T> to, const T* from) {
  if (auto done = copy(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost); !done) return done;
  return wait();
}

template <class T>
Result<> DeviceNet<T>::put_parameters(std::span<const T> from) {
  if (auto done = put(memory().parameters, from); !done) return done;
  return launch([&](const DeviceRunner& runner) -> Result<> {
    program_.round_weights(runner);
    return {};
  });
}

template <class T>
Result<> DeviceNet<T>::take_back(const std::byte* kept) {
  auto done = copy(memory().learnt(), kept, memory().learnt_bytes(), cudaMemcpyDeviceToDevice);
  if (!done) return done;
  return launch([&](const DeviceRunner& runner) -> Result<> {
    program_.round_weights(runner);
    return {};
  });
}

template <class T>
Result<> DeviceNet<T>::put_batch(const T* images, std::span<const std::uint8_t> labels,
                                 const BatchAddress& to) {
  const std::size_t bytes = labels.size() * image_bytes();
  if (auto done = copy(to.images, images, bytes, cudaMemcpyHostToDevice); !done) return done;
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
  auto done = launch([&](const DeviceRunner& runner) -> Result<> {
    program_.forward(runner, batch, true);
    program_.backward(runner, batch, [](std::size_t) {});
    return {};
  });
  return done ? wait() : done;
}

template <class T>
template <class Enqueue>
Result<> DeviceNet<T>::launch(const Enqueue& enqueue) {
  const DeviceRunner runner(stream(), streams_->beside.get(), streams_->mark.get());
  const Result<> enqueued = enqueue(runner);
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
  if (!graph) {
    auto captured = capture_graph(stream(), [&] { return launch(enqueue); });
    if (!captured) return captured.error();
    graph = std::move(*captured);
  }
  return cuda_check(cudaGraphLaunch(graph.get(), stream()), "cudaGraphLaunch");
}

template <class T>
Result<> DeviceNet<T>::forward(int batch) {
  return run(DeviceWork::kForward, batch, [&](const DeviceRunner& runner) -> Result<> {
    program_.forward(runner, batch, true);
    return {};
  });
}

template <class T>
Result<> DeviceNet<T>::backward(int batch) {
  return run(DeviceWork::kBackward, batch, [&](const DeviceRunner& runner) -> Result<> {
    program_.backward(runner, batch, [](std::size_t) {});
    return {};
  });
}

template <class T>
Result<> DeviceNet<T>::evaluate(int batch) {
  return run(DeviceWork::kEvaluate, batch, [&](const DeviceRunner& runner) -> Result<> {
    program_.forward(runner, batch, false);
    return {};
  });
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
  if (hyperparameters.kept != nullptr) {
    if (auto done = copy(hyperparameters.kept, m.learnt(), m.learnt_bytes(), cudaMemcpyDeviceToDevice); !done)
      return done;
  }
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
  if (auto done = copy(&score, memory().score, sizeof score, cudaMemcpyDeviceToHost); !done)
    return done.error();
  if (auto done = wait(); !done) return done.error();
  return kernels::BatchScore{score.loss_sum, score.correct};
}

template <class T>
Result<device::StepState> DeviceNet<T>::state() {
  device::StepState state{};
  if (auto done = copy(&state, memory().state, sizeof state, cudaMemcpyDeviceToHost); !done)
    return done.error();
  if (auto done = wait(); !done) return done.error();
  return state;
}

template <class T>
Result<> DeviceNet<T>::wait() {
  return cuda_check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
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

}  // namespace ddp::train
