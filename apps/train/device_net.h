#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "apps/train/cuda_objects.h"
#include "apps/train/device_runner.h"
#include "apps/train/kernels/device/training_memory.h"
#include "apps/train/kernels/softmax_loss.h"
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
    std::function<const Memory&()> memory;
    std::function<void(const DeviceRunner&, int batch, bool training)> forward;
    std::function<void(const DeviceRunner&, int batch)> backward;
    int image_size = 0;
    int max_batch = 0;
  };
  struct Recipe {
    kernels::device::UpdateSettings update{};
    int ranks = 1;
    DeviceAllReduce all_reduce;  ///< empty: this rank is alone
  };

  /// On the current device.
  static Result<std::unique_ptr<DeviceNet>> make(Program program);

  /// False: every launch by itself, to compare with.
  void use_graphs(bool use) { use_graphs_ = use; }

  /// When what they hold is gone: a communicator that was aborted.
  void forget_graphs() { graphs_.clear(); }

  // Between host and GPU; sizes as the vectors have them. `get` waits, and the host's memory may be reused
  // after `put` as soon as something has waited.
  Result<> put(T* to, std::span<const T> from);
  Result<> get(std::span<T> to, const T* from);
  Result<> put_batch(const T* images, std::span<const std::uint8_t> labels);
  const Memory& memory() const { return program_.memory(); }

  /// Of the batch that was put: gradients, mean loss, score and next_running.
  Result<> forward(int batch);
  Result<> backward(int batch);
  /// By the running statistics; only the score.
  Result<> evaluate(int batch);
  /// Everything of a step as one graph: forward, backward, the ranks' sum, finite check, clipping, update.
  /// The learning rate is a number in the GPU's memory, as is all that the step decides.
  Result<> step(int batch, double lr, const Recipe& recipe);
  /// Of the last forward, evaluate or step; wait.
  Result<kernels::BatchScore> score();
  Result<kernels::device::StepState> state();
  Result<> wait();

  cudaStream_t stream() const { return stream_.get(); }

 private:
  explicit DeviceNet(Program program) : program_(std::move(program)) {}
  enum class Work : int { kForward, kBackward, kEvaluate, kStep };
  /// enqueue(runner) → Result<>, at once or as the graph of (work, batch).
  template <class Enqueue>
  Result<> run(Work work, int batch, const Enqueue& enqueue);
  Result<> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);

  Program program_;
  DeviceBytes bytes_;
  CudaStream stream_;
  bool use_graphs_ = true;
  std::map<std::pair<Work, int>, CudaGraph> graphs_;
};

/// The same models as conv_net.h and mlp.h, of the same layout.
template <class T>
typename DeviceNet<T>::Program conv_net_on_device(int max_batch);
template <class T>
typename DeviceNet<T>::Program mlp_on_device(int width, int depth, int parameters, int max_batch);

}  // namespace ddp::train
