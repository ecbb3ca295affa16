#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/gpu/net_programs.h"
#include "apps/train/kernels/gpu/update_body.h"
#include "apps/train/model/model.h"
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

/// Sums `count` numbers of type T over all ranks, in place and in the stream's order. When the call returns,
/// the sum is in the stream, possibly put there by another thread; it may not have run. The call is captured
/// into the step's graph.
using DeviceAllReduce = std::function<Result<>(void* numbers, std::size_t count, cudaStream_t stream)>;

/// Timed events of a step: its begin, and the ends of forward, backward, the wait for the sums, and update.
using StepMarks = std::array<CudaEvent, 5>;

/// One model in the memory of one GPU, with its training steps. All work goes into one stream in the order of
/// the calls. Only a branch of the backward pass and the all-reduces have streams of their own, which the
/// first one waits for. A call waits
/// for the stream only if its comment says so. Work that repeats with the same batch size is captured once
/// and then replayed as a graph.
template <class T>
class DeviceNet {
 public:
  using Memory = kernels::device::TrainingMemory<T>;
  /// The model's launches (net_programs.h).
  struct Program {
    std::size_t bytes = 0;  ///< of GPU memory
    std::function<void(std::byte*)> lay_out;
    std::function<Memory&()> memory;
    std::function<void(const DeviceRunner&, int batch, bool training)> forward;
    std::function<void(const DeviceRunner&, int batch, const kernels::device::OnReady&)> backward;
    std::function<void(const DeviceRunner&, const UpdateSettings&, T share)> update;
    /// Rounds the parameters to the kernels' copy of the weights, after others wrote the parameters. Does
    /// nothing if the kernels read the parameters themselves.
    std::function<void(const DeviceRunner&)> round_weights;
    int image_border = 0;
    int max_batch = 0;
    std::shared_ptr<MatrixProducts> products;  ///< of forward and backward; null: own kernels
  };
  struct Hyperparameters {
    UpdateSettings update{};
    int ranks = 1;
    DeviceAllReduce all_reduce;  ///< empty: this rank is alone
    /// All parts of the gradients for all_reduce, in the order in which backward completes them. Each is
    /// summed while backward computes the next ones.
    std::vector<GradientBucket> buckets;
    /// Samples of a batch. A step of more samples has several batches. Their gradients are added in
    /// `earlier`, a buffer of gradient_bytes(), and reduced once. 0: a step is one batch.
    int batch = 0;
    std::byte* earlier = nullptr;
    /// The batches of a step in GPU memory (address_in()). Null: the one that was put.
    std::byte* sent = nullptr;
    /// Buffer of learnt_bytes() that receives the learned state before the step. Null: no copy is made.
    std::byte* kept = nullptr;
    const StepMarks* marks = nullptr;  ///< null: the step is not timed
    bool as_graph = true;              ///< false: single launches; the same on all ranks, as NCCL requires
    bool inject_nan = false;           ///< into this rank's gradient; requires as_graph false
  };
  /// Images and labels in the GPU's memory, and the order in which the steps read them.
  struct ResidentImages {
    const std::uint8_t* images = nullptr;
    const std::uint8_t* labels = nullptr;
    const std::uint32_t* order = nullptr;
  };

  /// Uses the current device.
  static Result<std::unique_ptr<DeviceNet>> make(Program program) {
    std::unique_ptr<DeviceNet> net(new DeviceNet(std::move(program)));
    net->bytes_ = DDP_TRY(make_device_bytes(net->program_.bytes));
    net->streams_ = DDP_TRY(GraphStreams::make());
    net->slots_ =
        DDP_TRY(make_pinned_bytes(sizeof(kernels::device::StepSlot) * kernels::device::StepSlots::kCount));
    net->program_.lay_out(net->bytes_.get());
    net->program_.memory().step.slots = reinterpret_cast<kernels::device::StepSlot*>(net->slots_.get());
    net->own_gradients_ = net->memory().gradients;
    return net;
  }

  /// Frees nothing while the GPU is at work: freeing could wait forever for an all-reduce whose ranks are
  /// gone. Such a process is about to end. The owner of the graphs drops them if they become idle later.
  ~DeviceNet() {
    if (streams_ == nullptr) return;
    if (is_idle()) {
      forget_graphs();
    } else {
      (void)bytes_.release();
      (void)slots_.release();
      (void)new std::shared_ptr<MatrixProducts>(program_.products);  // it owns memory, too
    }
  }

  DeviceNet(const DeviceNet&) = delete;
  DeviceNet& operator=(const DeviceNet&) = delete;

  /// False: launches each kernel by itself, for comparison.
  void use_graphs(bool use) { use_graphs_ = use; }

  /// Loads all kernels of the steps. CUDA loads a kernel at its first launch otherwise, and may then wait for
  /// running work: for an all-reduce whose peer waits for this rank.
  Result<> load() {
    const DeviceRunner loader(stream(), DeviceRunner::Mode::kLoad);
    loader.run<kernels::device::Gather<T>>({});
    loader.run<kernels::device::AddVector<T>>({});
    for (const int batch : {1, program_.max_batch})  // small batches have kernels of their own
      program_.forward(loader, batch, true);
    program_.backward(loader, 1, [](std::size_t) {});
    program_.update(loader, {}, T(1));
    program_.round_weights(loader);
    return loader.outcome();
  }

  /// The same for a library's kernels, which depend on the batch's size: makes a forward and a backward pass
  /// that nobody uses, and waits for it. Does nothing the second time.
  Result<> prepare(int batch) {
    if (program_.products == nullptr || !prepared_.insert(batch).second) return {};
    DDP_TRY(launch([&](const DeviceRunner& runner) {
      program_.forward(runner, batch, true);
      program_.backward(runner, batch, [](std::size_t) {});
    }));
    return wait();
  }

  /// Drops the captured graphs; required when hyperparameters or memory change.
  void forget_graphs() { streams_->graphs.clear(); }
  /// Returns the owner of the captured graphs, for the end of the all-reduces in them.
  GraphOwner graph_owner() const { return train::graph_owner(streams_); }

  /// Computes later gradients in `memory` of gradient_bytes(). Null: in the net's own memory again.
  void place_gradients(std::byte* memory) {
    forget_graphs();
    program_.memory().gradients = memory == nullptr ? own_gradients_ : reinterpret_cast<T*>(memory);
  }

  std::size_t gradient_bytes() const { return (static_cast<std::size_t>(memory().count) + 1) * sizeof(T); }

  // Copies between host and GPU; the vectors give the sizes. `get` waits. After `put` and `copy`, the host's
  // memory may be reused once a later call has waited.
  Result<> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return {};
    return DDP_CUDA_CHECK(cudaMemcpyAsync, to, from, bytes, kind, stream());
  }

  Result<> put(T* to, std::span<const T> from) {
    return copy(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice);
  }

  Result<> get(std::span<T> to, const T* from) {
    DDP_TRY(copy(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost));
    return wait();
  }

  Result<> put_parameters(std::span<const T> from) {
    DDP_TRY(put(memory().parameters, from));
    return launch([&](const DeviceRunner& runner) { program_.round_weights(runner); });
  }

  Result<> put_batch(const T* images, std::span<const std::uint8_t> labels) {
    return put_batch(images, labels, {memory().images, memory().labels});
  }
  struct BatchAddress {
    T* images;
    std::uint8_t* labels;
  };
  Result<> put_batch(const T* images, std::span<const std::uint8_t> labels, const BatchAddress& to) {
    const std::size_t bytes = labels.size() * image_bytes();
    DDP_TRY(copy(to.images, images, bytes, cudaMemcpyHostToDevice));
    return copy(to.labels, labels.data(), labels.size(), cudaMemcpyHostToDevice);
  }

  /// Returns the address of a batch in a buffer of batches, each of batch_bytes().
  BatchAddress address_in(std::byte* batches, std::size_t number) const {
    std::byte* const begin = batches + number * batch_bytes();
    return {reinterpret_cast<T*>(begin),
            reinterpret_cast<std::uint8_t*>(begin +
                                            static_cast<std::size_t>(program_.max_batch) * image_bytes())};
  }
  const Memory& memory() const { return program_.memory(); }
  std::size_t image_bytes() const {
    const std::size_t side = static_cast<std::size_t>(kImageSide + 2 * program_.image_border);
    return side * side * sizeof(T);
  }
  /// Returns the bytes of the largest batch, labels included, as a multiple of the alignment of GPU memory.
  std::size_t batch_bytes() const {
    constexpr std::size_t kAlignment = 256;
    const std::size_t bytes = static_cast<std::size_t>(program_.max_batch) * (image_bytes() + 1);
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Restores the learned state from the copy that the last step with Hyperparameters::kept made.
  Result<> take_back(const std::byte* kept) {
    DDP_TRY(copy(memory().learnt(), kept, memory().learnt_bytes(), cudaMemcpyDeviceToDevice));
    return launch([&](const DeviceRunner& runner) { program_.round_weights(runner); });
  }

  /// Compute gradients, mean loss, score and next_running of the batch that was put.
  Result<> forward(int batch) {
    return run(DeviceWork::kForward, batch,
               [&](const DeviceRunner& runner) { program_.forward(runner, batch, true); });
  }

  Result<> backward(int batch) {
    return run(DeviceWork::kBackward, batch,
               [&](const DeviceRunner& runner) { program_.backward(runner, batch, [](std::size_t) {}); });
  }

  /// Computes the score only, with the running statistics.
  Result<> evaluate(int batch) {
    return run(DeviceWork::kEvaluate, batch,
               [&](const DeviceRunner& runner) { program_.forward(runner, batch, false); });
  }

  /// Makes a whole step as one graph: forward, backward, all-reduce, finite check, clipping, update. The
  /// batches are those that were sent or put or, with `held`, those that `input` selects. The learning rate
  /// and all decisions of the step are in memory. At most StepSlots::kCount steps may be in flight.
  Result<> step(int samples, const kernels::device::StepInput& input, const Hyperparameters& hyperparameters,
                const ResidentImages* held = nullptr) {
    memory().step.slots[launched_ % kernels::device::StepSlots::kCount].input = input;
    const auto enqueue = [&](const DeviceRunner& runner) {
      return enqueue_step(runner, samples, hyperparameters, held);
    };
    const DeviceWork work = held != nullptr ? DeviceWork::kHeldStep : DeviceWork::kStep;
    Result<> done;
    if (hyperparameters.as_graph) {
      done = run(work, samples, enqueue);
    } else {
      streams_->graphs.try_emplace(
          {static_cast<int>(work), samples});  // counts as the first run of this graph
      done = launch(enqueue);
    }
    if (done) ++launched_;
    return done;
  }

  /// Returns the outcome of a step, by its number from 0, after an event behind the step.
  const kernels::device::StepOutcome& outcome(std::uint64_t step) const {
    return memory().step.slots[step % kernels::device::StepSlots::kCount].outcome;
  }
  /// Return the results of the last forward, evaluate or step. Both wait.
  Result<kernels::BatchScore> score() {
    kernels::BatchScore score;
    DDP_TRY(copy(&score, memory().score, sizeof score, cudaMemcpyDeviceToHost));
    DDP_TRY(wait());
    return score;
  }

  Result<kernels::device::StepState> state() {
    kernels::device::StepState state{};
    DDP_TRY(copy(&state, memory().state, sizeof state, cudaMemcpyDeviceToHost));
    DDP_TRY(wait());
    return state;
  }

  Result<> wait() { return DDP_CUDA_CHECK(cudaStreamSynchronize, stream()); }

  /// The same with a deadline (kTimeout), for work that may never end.
  Result<> wait(std::chrono::milliseconds timeout) {
    return wait_for_stream(stream(), timeout, "the steps in flight");
  }
  /// Returns true if all launched work is done and the GPU has not failed.
  bool is_idle() const {
    const auto done = streams_->is_idle();
    return done && *done;
  }

  cudaStream_t stream() const { return streams_->stream.get(); }

 private:
  explicit DeviceNet(Program program) : program_(std::move(program)) {}
  enum class DeviceWork : int { kForward, kBackward, kEvaluate, kStep, kHeldStep };
  /// Runs enqueue(runner), which returns a Result<> or nothing, at once.
  template <class Enqueue>
  Result<> launch(const Enqueue& enqueue) {
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

  /// Runs `enqueue` as launch() does, or as the graph of (work, batch).
  template <class Enqueue>
  Result<> run(DeviceWork work, int batch, const Enqueue& enqueue) {
    const auto [place, is_new] = streams_->graphs.try_emplace({static_cast<int>(work), batch});
    // The first run is not captured: it loads the kernels and makes an all-reduce's connections, which a
    // capture would have to allow.
    if (!use_graphs_ || is_new) return launch(enqueue);
    CudaGraph& graph = place->second;
    if (!graph) graph = DDP_TRY(capture_graph(stream(), [&] { return launch(enqueue); }));
    return DDP_CUDA_CHECK(cudaGraphLaunch, graph.get(), stream());
  }

  Result<> enqueue_step(const DeviceRunner& runner, int samples, const Hyperparameters& hyperparameters,
                        const ResidentImages* held) {
    Memory& m = program_.memory();
    const auto mark = [&](std::size_t part) {
      if (hyperparameters.marks == nullptr) return;
      runner.call([&](cudaStream_t to) { return record_time((*hyperparameters.marks)[part].get(), to); });
    };
    mark(0);
    if (hyperparameters.kept != nullptr)
      DDP_TRY(copy(hyperparameters.kept, m.learnt(), m.learnt_bytes(), cudaMemcpyDeviceToDevice));
    const int most = hyperparameters.batch == 0 ? samples : hyperparameters.batch;
    const int batches = kernels::device::divide_up(samples, most);
    for (int i = 0; i < batches; ++i) {
      const int batch = std::min(most, samples - i * most);
      const Memory whole = m;  // launches copy the addresses
      // A batch continues the statistics of the one before it. A dropped step keeps none of them.
      if (i > 0) m.running = m.next_running;
      if (held != nullptr) {
        runner.run<kernels::device::Gather<T>>({batch, program_.image_border, held->images, held->labels,
                                                held->order + i * most, m.step, m.images, m.labels});
      } else if (hyperparameters.sent != nullptr) {
        const BatchAddress sent = address_in(hyperparameters.sent, static_cast<std::size_t>(i));
        m.images = sent.images;
        m.labels = sent.labels;
      }
      program_.forward(runner, batch, true);
      const bool is_last = i + 1 == batches;
      if (is_last) mark(1);
      const auto done = is_last ? enqueue_backward(runner, batch, hyperparameters, batches > 1, mark)
                                : enqueue_earlier_batch(runner, batch, i == 0, hyperparameters.earlier);
      m = whole;
      if (!done) return done;
    }
    mark(3);
    program_.update(runner, hyperparameters.update, T(1) / static_cast<T>(hyperparameters.ranks * batches));
    mark(4);
    return {};
  }

  /// Enqueues the backward pass of a batch that is not the step's last one, and adds up the gradients.
  Result<> enqueue_earlier_batch(const DeviceRunner& runner, int batch, bool is_first, std::byte* earlier) {
    program_.backward(runner, batch, [](std::size_t) {});
    if (is_first) return copy(earlier, memory().gradients, gradient_bytes(), cudaMemcpyDeviceToDevice);
    runner.run<kernels::device::AddVector<T>>(
        {memory().count + 1, reinterpret_cast<T*>(earlier), memory().gradients});
    return {};
  }

  template <class Mark>
  Result<> enqueue_backward(const DeviceRunner& runner, int batch, const Hyperparameters& hyperparameters,
                            bool adds_earlier, const Mark& mark) {
    const auto& buckets = hyperparameters.buckets;
    const cudaStream_t sums = streams_->between_ranks.get();
    const auto add_earlier = [&](const DeviceRunner& to, const GradientBucket& range) {
      if (!adds_earlier) return;
      to.run<kernels::device::AddVector<T>>({static_cast<int>(range.end - range.begin),
                                             memory().gradients + range.begin,
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
    mark(2);
    if (next == 0) return enqueued;
    // Also after an error: whoever waits for the net's stream then waits for the sums that are under way.
    const Result<> joined = order_streams(sums, stream(), streams_->mark.get());
    return enqueued ? joined : enqueued;
  }

  Program program_;
  DeviceBytes bytes_;
  PinnedBytes slots_;           ///< of StepSlots; kernels use the same addresses
  std::uint64_t launched_ = 0;  ///< steps, as StepSlots::turn
  bool use_graphs_ = true;
  std::set<int> prepared_;  ///< sizes of batches
  T* own_gradients_ = nullptr;
  std::shared_ptr<GraphStreams> streams_;
};

/// The DeviceSteps of one DeviceNet.
template <class T>
class NetSteps final : public DeviceSteps<T> {
 public:
  /// `model` holds weights and running statistics for the host. `net` and `model` must outlive the steps.
  static Result<std::unique_ptr<NetSteps>> make(DeviceNet<T>& net, Model<T>& model) {
    std::unique_ptr<NetSteps> steps(new NetSteps(net, model));
    static_assert(DeviceSteps<T>::kMaxInFlight == kernels::device::StepSlots::kCount);
    for (CudaEvent& event : steps->events_)
      event = DDP_TRY(make_cuda_event());
    return steps;
  }

  /// Frees nothing while the GPU is at work, as in DeviceNet.
  ~NetSteps() override {
    if (net_.is_idle()) return;
    (void)batches_.release();
    for (DeviceBytes* bytes : {&sent_, &kept_, &earlier_, &images_, &order_})
      (void)bytes->release();
  }

  Result<> attach(const DeviceStepSettings& settings) override {
    DDP_TRY(net_.load());
    net_.forget_graphs();
    ranks_ = settings.ranks;
    drop_timeout_ = settings.drop_timeout;
    hyperparameters_ = {};
    hyperparameters_.update = settings.update;
    hyperparameters_.ranks = ranks_ == nullptr ? 1 : ranks_->world_size();
    if (settings.undo && kept_ == nullptr) kept_ = DDP_TRY(make_device_bytes(net_.memory().learnt_bytes()));
    max_batches_ = static_cast<std::size_t>(settings.batches);
    if (max_batches_ > 1 && earlier_ == nullptr) earlier_ = DDP_TRY(make_device_bytes(net_.gradient_bytes()));
    hyperparameters_.batch = settings.batch;
    hyperparameters_.earlier = earlier_.get();
    hyperparameters_.sent = sent_.get();
    hyperparameters_.kept = settings.undo ? kept_.get() : nullptr;
    if (settings.timed && marks_.front() == nullptr) {
      for (CudaEvent& mark : marks_)
        mark = DDP_TRY(make_cuda_event(true));
    }
    hyperparameters_.marks = settings.timed ? &marks_ : nullptr;
    if (ranks_ == nullptr) return {};
    hyperparameters_.buckets = settings.buckets;
    if (hyperparameters_.buckets.empty()) hyperparameters_.buckets = {{0, net_.gradient_bytes() / sizeof(T)}};
    hyperparameters_.all_reduce = [ranks = ranks_](void* numbers, std::size_t count, cudaStream_t stream) {
      return ranks->enqueue_on_device(all_reduce(numbers, count), stream);
    };
    ranks_->on_end(net_.graph_owner());
    if (const auto memory = ranks_->share_device_memory(net_.gradient_bytes()); !memory.bytes.empty())
      net_.place_gradients(memory.bytes.data());
    return {};
  }

  void detach() override {
    net_.place_gradients(nullptr);  // also forgets the graphs
    hyperparameters_ = {};
    ranks_ = nullptr;
  }

  Result<bool> keep_images(const Dataset& data) override {
    // Holds the images once for all epochs, since holding forgets the graphs. Else this rank alone might make
    // a first step where the others replay a graph.
    if (seen_images_ == data.size()) return held_.images != nullptr;
    seen_images_ = data.size();
    held_ = {};
    if (data.draw) return false;
    const std::size_t image_bytes = data.size() * kImagePixels;
    auto images = make_device_bytes(image_bytes + data.size());
    auto order = make_device_bytes(data.size() * sizeof(std::uint32_t));
    if (!images || !order) return false;  // no room: the host sends batches
    DDP_TRY(net_.copy(images->get(), data.images.data(), data.images.size(), cudaMemcpyHostToDevice));
    DDP_TRY(net_.copy(images->get() + image_bytes, data.labels.data(), data.labels.size(),
                      cudaMemcpyHostToDevice));
    DDP_TRY(net_.wait());
    images_ = std::move(*images);
    order_ = std::move(*order);
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(images_.get());
    held_ = {bytes, bytes + image_bytes, reinterpret_cast<const std::uint32_t*>(order_.get())};
    net_.forget_graphs();
    return true;
  }

  Result<> set_order(std::span<const std::uint32_t> order) override {
    DDP_TRY(net_.copy(order_.get(), order.data(), order.size_bytes(), cudaMemcpyHostToDevice));
    return net_.wait();
  }

  Result<> prepare(std::size_t batch) override { return net_.prepare(static_cast<int>(batch)); }
  Result<> move_state_to_gpu(Optimizer<T>& optimizer) override {
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

  Result<> move_state_to_host(Optimizer<T>& optimizer) override {
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

  /// The GPU has the state, and the host's is stale: from move_state_to_gpu() to move_state_to_host().
  bool has_state() const { return has_state_; }
  std::size_t in_flight() const override { return launched_ - finished_; }
  /// Uses pinned memory: a copy from other memory waits for the stream, and so for an all-reduce that may
  /// never end.
  Result<> send(const T* images, std::span<const std::uint8_t> labels) override {
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

  Result<> launch(const DeviceStep& step) override {
    hyperparameters_.as_graph = step.as_graph;
    hyperparameters_.inject_nan = step.inject_nan;
    const bool held = std::exchange(sent_count_, 0) == 0;
    for (const GradientBucket& bucket : hyperparameters_.buckets)
      ranks_->launched(all_reduce(nullptr, bucket.end - bucket.begin));
    DDP_TRY(net_.step(static_cast<int>(step.size), {step.lr, step.first}, hyperparameters_,
                      held ? &held_ : nullptr));
    DDP_TRY(DDP_CUDA_CHECK(cudaEventRecord, event(launched_), net_.stream()));
    ++launched_;
    return {};
  }

  Result<ReducedGradient> finish() override {
    DDP_TRY(wait_for(event(finished_)));
    const kernels::device::StepOutcome& outcome = net_.outcome(finished_++);
    return ReducedGradient{outcome.loss, outcome.skip == 0, outcome.norm};
  }

  Result<DeviceTimes> last_times() override {
    DeviceTimes times;
    double DeviceTimes::*const parts[] = {&DeviceTimes::forward, &DeviceTimes::backward, &DeviceTimes::sums,
                                          &DeviceTimes::update};
    for (std::size_t i = 0; i < std::size(parts); ++i)
      times.*parts[i] = DDP_TRY(seconds_between(marks_[i].get(), marks_[i + 1].get()));
    return times;
  }

  Result<> drop() override {
    const bool half = in_flight() != 0;
    finished_ = launched_;
    // A revoke or a lost peer may be unnoticed until now. This wait notices it, and so aborts the
    // all-reduces.
    const auto is_idle = [this]() -> Result<bool> { return net_.is_idle(); };
    if (ranks_ != nullptr && !net_.is_idle()) (void)ranks_->wait_for_device(is_idle, "all-reduce");
    // An aborted all-reduce lets the stream continue; its result is undefined.
    DDP_TRY(net_.wait(drop_timeout_));
    if (!half || hyperparameters_.kept == nullptr) return {};
    DDP_TRY(net_.take_back(hyperparameters_.kept));
    return net_.wait(drop_timeout_);
  }

 private:
  static DeviceOperation all_reduce(void* numbers, std::size_t count) {
    constexpr auto kType = sizeof(T) == 8 ? NumberType::kFloat64 : NumberType::kFloat32;
    return {CollectiveKind::kAllReduce, numbers, count, kType};
  }
  NetSteps(DeviceNet<T>& net, Model<T>& model) : net_(net), model_(model) {}
  cudaEvent_t event(std::size_t step) const { return events_[step % DeviceSteps<T>::kMaxInFlight].get(); }
  Result<> wait_for(cudaEvent_t event) {
    if (ranks_ == nullptr) return DDP_CUDA_CHECK(cudaEventSynchronize, event);
    const auto is_done = [event] { return cuda_is_done(cudaEventQuery(event), "cudaEventQuery"); };
    Result<> waited;
    for (std::size_t i = 0; waited && i < hyperparameters_.buckets.size(); ++i)
      waited = ranks_->wait_for_device(is_done, "all-reduce");
    return waited;
  }

  DeviceNet<T>& net_;
  Model<T>& model_;
  bool has_state_ = false;
  PinnedBytes batches_;         ///< of kMaxInFlight steps; null if the GPU holds the images
  DeviceBytes sent_;            ///< the batches of one step, likewise
  std::size_t sent_count_ = 0;  ///< batches of the next step
  std::size_t max_batches_ = 1;
  std::array<CudaEvent, DeviceSteps<T>::kMaxInFlight> events_;
  StepMarks marks_;
  std::size_t launched_ = 0, finished_ = 0;
  Communicator* ranks_ = nullptr;
  typename DeviceNet<T>::Hyperparameters hyperparameters_;
  std::chrono::milliseconds drop_timeout_{0};
  DeviceBytes kept_;     ///< learned state before the step in flight; only with undo
  DeviceBytes earlier_;  ///< sum of the gradients of a step's earlier batches
  DeviceBytes images_, order_;
  std::size_t seen_images_ = 0;  ///< images of the data set that keep_images() saw
  typename DeviceNet<T>::ResidentImages held_;
};

/// The models of model.h, in the same layout. Activations and the weights that kernels read
/// are stored as S: T, or Bf16 for float.
template <class T, class S = T>
typename DeviceNet<T>::Program conv_net_on_device(int max_batch);
/// `products` multiply float numbers if not null, and in TF32 if `tf32`.
template <class T, class S = T>
typename DeviceNet<T>::Program mlp_on_device(int width, int depth, int parameters, int max_batch,
                                             std::shared_ptr<MatrixProducts> products = nullptr,
                                             bool tf32 = false);

}  // namespace ddp::train
