#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/gpu/training_memory.h"
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
    std::function<void(const DeviceRunner&, const kernels::device::UpdateSettings&, T share)> update;
    /// Rounds the parameters to the kernels' copy of the weights, after others wrote the parameters. Does
    /// nothing if the kernels read the parameters themselves.
    std::function<void(const DeviceRunner&)> round_weights;
    int image_border = 0;
    int max_batch = 0;
    std::shared_ptr<MatrixProducts> products;  ///< of forward and backward; null: own kernels
  };
  struct Hyperparameters {
    kernels::device::UpdateSettings update{};
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
    bool as_graph = true;     ///< false: single launches; the same on all ranks, as NCCL requires
    bool inject_nan = false;  ///< into this rank's gradient; requires as_graph false
  };
  /// Images and labels in the GPU's memory, and the order in which the steps read them.
  struct ResidentImages {
    const std::uint8_t* images = nullptr;
    const std::uint8_t* labels = nullptr;
    const std::uint32_t* order = nullptr;
  };

  /// Uses the current device.
  static Result<std::unique_ptr<DeviceNet>> make(Program program);

  /// Frees nothing while the GPU is at work: freeing could wait forever for an all-reduce whose ranks are
  /// gone. Such a process is about to end. The owner of the graphs drops them if they become idle later.
  ~DeviceNet();
  DeviceNet(const DeviceNet&) = delete;
  DeviceNet& operator=(const DeviceNet&) = delete;

  /// False: launches each kernel by itself, for comparison.
  void use_graphs(bool use) { use_graphs_ = use; }

  /// Loads all kernels of the steps. CUDA loads a kernel at its first launch otherwise, and may then wait for
  /// running work: for an all-reduce whose peer waits for this rank.
  Result<> load();
  /// The same for a library's kernels, which depend on the batch's size: makes a forward and a backward pass
  /// that nobody uses, and waits for it. Does nothing the second time.
  Result<> prepare(int batch);

  /// Drops the captured graphs; required when hyperparameters or memory change.
  void forget_graphs() { streams_->graphs.clear(); }
  /// Returns the owner of the captured graphs, for the end of the all-reduces in them.
  GraphOwner graph_owner() const { return train::graph_owner(streams_); }

  /// Computes later gradients in `memory` of gradient_bytes(). Null: in the net's own memory again.
  void place_gradients(std::byte* memory);
  std::size_t gradient_bytes() const { return (static_cast<std::size_t>(memory().count) + 1) * sizeof(T); }

  // Copies between host and GPU; the vectors give the sizes. `get` waits. After `put` and `copy`, the host's
  // memory may be reused once a later call has waited.
  Result<> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
  Result<> put(T* to, std::span<const T> from);
  Result<> get(std::span<T> to, const T* from);
  Result<> put_parameters(std::span<const T> from);
  Result<> put_batch(const T* images, std::span<const std::uint8_t> labels) {
    return put_batch(images, labels, {memory().images, memory().labels});
  }
  /// The address of a batch.
  struct BatchAddress {
    T* images;
    std::uint8_t* labels;
  };
  Result<> put_batch(const T* images, std::span<const std::uint8_t> labels, const BatchAddress& to);
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
  Result<> take_back(const std::byte* kept);

  /// Compute gradients, mean loss, score and next_running of the batch that was put.
  Result<> forward(int batch);
  Result<> backward(int batch);
  /// Computes the score only, with the running statistics.
  Result<> evaluate(int batch);
  /// Makes a whole step as one graph: forward, backward, all-reduce, finite check, clipping, update. The
  /// batches are those that were sent or put or, with `held`, those that `input` selects. The learning rate
  /// and all decisions of the step are in memory. At most StepSlots::kCount steps may be in flight.
  Result<> step(int samples, const kernels::device::StepInput& input, const Hyperparameters& hyperparameters,
                const ResidentImages* held = nullptr);
  /// Returns the outcome of a step, by its number from 0, after an event behind the step.
  const kernels::device::StepOutcome& outcome(std::uint64_t step) const {
    return memory().step.slots[step % kernels::device::StepSlots::kCount].outcome;
  }
  /// Return the results of the last forward, evaluate or step. Both wait.
  Result<kernels::BatchScore> score();
  Result<kernels::device::StepState> state();
  Result<> wait();
  /// The same with a deadline (kTimeout), for work that may never end.
  Result<> wait(std::chrono::milliseconds timeout) {
    return wait_for_stream(stream(), timeout, "the steps in flight");
  }
  /// Returns true if all launched work is done and the GPU has not failed.
  bool is_idle() const;

  cudaStream_t stream() const { return streams_->stream.get(); }

 private:
  explicit DeviceNet(Program program) : program_(std::move(program)) {}
  enum class DeviceWork : int { kForward, kBackward, kEvaluate, kStep, kHeldStep };
  /// Runs enqueue(runner), which returns a Result<> or nothing, at once.
  template <class Enqueue>
  Result<> launch(const Enqueue& enqueue);
  /// Runs `enqueue` as launch() does, or as the graph of (work, batch).
  template <class Enqueue>
  Result<> run(DeviceWork work, int batch, const Enqueue& enqueue);
  Result<> enqueue_step(const DeviceRunner& runner, int samples, const Hyperparameters& hyperparameters,
                        const ResidentImages* held);
  Result<> enqueue_earlier_batch(const DeviceRunner& runner, int batch, bool is_first, std::byte* earlier);
  Result<> enqueue_backward(const DeviceRunner& runner, int batch, const Hyperparameters& hyperparameters,
                            bool adds_earlier);

  Program program_;
  DeviceBytes bytes_;
  PinnedBytes slots_;           ///< of StepSlots; kernels use the same addresses
  std::uint64_t launched_ = 0;  ///< steps, as StepSlots::turn
  bool use_graphs_ = true;
  std::set<int> prepared_;  ///< sizes of batches
  T* own_gradients_ = nullptr;
  std::shared_ptr<GraphStreams> streams_;
};

/// The models of conv_net.h and model.h, in the same layout. Activations and the weights that kernels read
/// are stored as S: T, or Bf16 for float.
template <class T, class S = T>
typename DeviceNet<T>::Program conv_net_on_device(int max_batch);
/// `products` multiply float numbers if not null, and in TF32 if `tf32`.
template <class T, class S = T>
typename DeviceNet<T>::Program mlp_on_device(int width, int depth, int parameters, int max_batch,
                                             std::shared_ptr<MatrixProducts> products = nullptr,
                                             bool tf32 = false);

/// The DeviceSteps of one DeviceNet.
template <class T>
class NetSteps final : public DeviceSteps<T> {
 public:
  /// `model` holds weights and running statistics for the host. `net` and `model` must outlive the steps.
  static Result<std::unique_ptr<NetSteps>> make(DeviceNet<T>& net, Model<T>& model);
  ~NetSteps() override;  ///< frees nothing while the GPU is at work, as in DeviceNet

  Result<> attach(const DeviceStepSettings& settings) override;
  void detach() override;
  Result<bool> hold(const Dataset& data) override;
  Result<> set_order(std::span<const std::uint32_t> order) override;
  Result<> prepare(std::size_t batch) override { return net_.prepare(static_cast<int>(batch)); }
  Result<> take(Optimizer<T>& optimizer) override;
  Result<> give(Optimizer<T>& optimizer) override;
  /// The GPU has the state, and the host's is stale: from take() to give().
  bool has_state() const { return has_state_; }
  std::size_t in_flight() const override { return launched_ - finished_; }
  Result<> send(const T* images, std::span<const std::uint8_t> labels) override;
  Result<> launch(const DeviceStep& step) override;
  Result<DeviceOutcome> finish() override;
  Result<> drop() override;

 private:
  NetSteps(DeviceNet<T>& net, Model<T>& model) : net_(net), model_(model) {}
  cudaEvent_t event(std::size_t step) const { return events_[step % DeviceSteps<T>::kMaxInFlight].get(); }
  Result<> wait_for(cudaEvent_t event);

  DeviceNet<T>& net_;
  Model<T>& model_;
  bool has_state_ = false;
  PinnedBytes batches_;         ///< of kMaxInFlight steps; null if the GPU holds the images
  DeviceBytes sent_;            ///< the batches of one step, likewise
  std::size_t sent_count_ = 0;  ///< batches of the next step
  std::size_t max_batches_ = 1;
  std::array<CudaEvent, DeviceSteps<T>::kMaxInFlight> events_;
  std::size_t launched_ = 0, finished_ = 0;
  Communicator* ranks_ = nullptr;
  typename DeviceNet<T>::Hyperparameters hyperparameters_;
  std::chrono::milliseconds drop_timeout_{0};
  DeviceBytes kept_;     ///< learned state before the step in flight; only with undo
  DeviceBytes earlier_;  ///< sum of the gradients of a step's earlier batches
  DeviceBytes images_, order_;
  std::size_t hold_size_ = 0;  ///< images of the data set that hold() saw
  typename DeviceNet<T>::ResidentImages held_;
};

}  // namespace ddp::train
