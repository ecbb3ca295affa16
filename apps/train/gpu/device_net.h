#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/kernels/cpu/softmax_loss.h"
#include "apps/train/kernels/gpu/training_memory.h"
#include "base/result.h"

namespace ddp::train {

/// Sums `count` numbers of type T over all ranks, in place, in the stream's order: when the call returns it
/// is in the stream, whoever put it there, and is not waited for. Captured into the step's graph.
using DeviceAllReduce = std::function<Result<>(void* numbers, std::size_t count, cudaStream_t stream)>;

/// One model in the memory of one GPU, and its training steps. All work goes into one stream in the order of
/// the calls; only what says so waits for it. What comes again with the same batch size is captured, and
/// replayed as a graph from then on.
template <class T>
class DeviceNet {
 public:
  using Memory = kernels::device::TrainingMemory<T>;
  /// The model's launches (conv_net_program.h, mlp_program.h).
  struct Program {
    std::size_t bytes = 0;  ///< of GPU memory
    std::function<void(std::byte*)> lay_out;
    std::function<Memory&()> memory;
    std::function<void(const DeviceRunner&, int batch, bool training)> forward;
    std::function<void(const DeviceRunner&, int batch)> backward;
    std::function<void(const DeviceRunner&, const kernels::device::UpdateSettings&, T share)> update;
    /// The kernels' own copy of the weights after others wrote the parameters; nothing where it is no copy.
    std::function<void(const DeviceRunner&)> round_weights;
    int image_border = 0;
    int max_batch = 0;
  };
  struct Hyperparameters {
    kernels::device::UpdateSettings update{};
    int ranks = 1;
    DeviceAllReduce all_reduce;  ///< empty: this rank is alone
    /// As big as what is learnt: what was learnt before the step is kept there. Null: it is not.
    std::byte* kept = nullptr;
    bool as_graph = true;     ///< false: by single launches; all ranks alike, as NCCL wants it
    bool inject_nan = false;  ///< into this rank's gradient; not in a graph
  };
  /// Images and labels in the GPU's memory, and the order in which they come.
  struct ResidentImages {
    const std::uint8_t* images = nullptr;
    const std::uint8_t* labels = nullptr;
    const std::uint32_t* order = nullptr;
  };

  /// On the current device.
  static Result<std::unique_ptr<DeviceNet>> make(Program program);

  /// While the GPU is still at work nothing is given back, for that could wait for ever (a sum whose ranks
  /// are gone): such a process is about to end.
  ~DeviceNet();
  DeviceNet(const DeviceNet&) = delete;
  DeviceNet& operator=(const DeviceNet&) = delete;

  /// False: every launch by itself, to compare with.
  void use_graphs(bool use) { use_graphs_ = use; }

  /// When other hyperparameters come, or other memory.
  void forget_graphs() { graphs_->clear(); }
  /// The same as a call that may come at any time, when this is gone too.
  std::function<void()> forgetter();

  /// Gradients are computed there from now on: as many bytes as gradient_bytes(). Null: in own memory again.
  void place_gradients(std::byte* memory);
  std::size_t gradient_bytes() const { return (static_cast<std::size_t>(memory().count) + 1) * sizeof(T); }

  // Between host and GPU; sizes as the vectors have them. `get` waits, and the host's memory may be reused
  // after `put` as soon as something has waited.
  Result<> put(T* to, std::span<const T> from);
  Result<> get(std::span<T> to, const T* from);
  Result<> put_parameters(std::span<const T> from);
  Result<> put_batch(const T* images, std::span<const std::uint8_t> labels);
  const Memory& memory() const { return program_.memory(); }
  std::size_t image_bytes() const {
    const std::size_t side = static_cast<std::size_t>(kImageSide + 2 * program_.image_border);
    return side * side * sizeof(T);
  }
  /// Of the largest batch, labels included.
  std::size_t batch_bytes() const {
    return static_cast<std::size_t>(program_.max_batch) * (image_bytes() + 1);
  }

  /// What was learnt becomes what it was when the last step with Recipe::kept began.
  Result<> take_back(const std::byte* kept);

  /// Of the batch that was put: gradients, mean loss, score and next_running.
  Result<> forward(int batch);
  Result<> backward(int batch);
  /// By the running statistics; only the score.
  Result<> evaluate(int batch);
  /// Everything of a step as one graph: the batch that was put, or, with `held`, the one that `input` says;
  /// forward, backward, the ranks' sum, finite check, clipping, update. The learning rate is a number in the
  /// GPU's memory, as is all that the step decides. `input` stays as it is until the step is done.
  Result<> step(int batch, const kernels::device::StepInput& input, const Hyperparameters& hyperparameters,
                const ResidentImages* held = nullptr);
  /// Of the last forward, evaluate or step; wait.
  Result<kernels::BatchScore> score();
  Result<kernels::device::StepState> state();
  Result<> wait();
  /// All is done that was launched, and the GPU has not failed.
  bool is_idle() const;

  cudaStream_t stream() const { return stream_.get(); }

 private:
  explicit DeviceNet(Program program) : program_(std::move(program)) {}
  enum class DeviceWork : int { kForward, kBackward, kEvaluate, kStep, kHeldStep };
  using Graphs = std::map<std::pair<DeviceWork, int>, CudaGraph>;
  /// enqueue(runner) → Result<>, at once.
  template <class Enqueue>
  Result<> launch(const Enqueue& enqueue);
  /// The same, or as the graph of (work, batch).
  template <class Enqueue>
  Result<> run(DeviceWork work, int batch, const Enqueue& enqueue);
  Result<> enqueue_step(const DeviceRunner& runner, int batch, const Hyperparameters& hyperparameters,
                        const ResidentImages* held);
  Result<> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);

  Program program_;
  DeviceBytes bytes_;
  CudaStream stream_;
  bool use_graphs_ = true;
  T* own_gradients_ = nullptr;
  std::shared_ptr<Graphs> graphs_ = std::make_shared<Graphs>();
};

/// The same models as conv_net.h and mlp.h, of the same layout. S: how activations and the weights that
/// kernels read are stored; T, or Bf16 for float.
template <class T, class S = T>
typename DeviceNet<T>::Program conv_net_on_device(int max_batch);
template <class T, class S = T>
typename DeviceNet<T>::Program mlp_on_device(int width, int depth, int parameters, int max_batch);

}  // namespace ddp::train
