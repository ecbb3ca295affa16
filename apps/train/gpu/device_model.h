#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

/// Settings of the steps from attach() to detach().
struct DeviceStepSettings {
  UpdateSettings update{};
  Communicator* ranks = nullptr;        ///< sums the gradients; null: this rank is alone
  std::vector<GradientBucket> buckets;  ///< of plan_buckets(); empty: one of all gradients
  int batch = 0;       ///< samples of a batch; a step may have several. 0: a step is one batch
  int batches = 1;     ///< limit of batches per step
  bool undo = false;   ///< drop() must restore the state before the step in flight
  bool timed = false;  ///< last_times() is known; at most one step may be in flight
  std::chrono::milliseconds drop_timeout{5'000};  ///< for drop() to wait for the GPU
};

/// The input of one step.
struct DeviceStep {
  double lr = 0;
  bool as_graph = true;     ///< false: single launches; the same on all ranks
  bool inject_nan = false;  ///< into this rank's gradient; requires as_graph false
  std::size_t first = 0;    ///< position of its first sample in the order (set_order())
  std::size_t size = 0;     ///< samples
};

/// The outcome of a step, which all ranks know alike after the gradient was reduced.
struct ReducedGradient {
  double loss = 0;     ///< mean over micro-batches and ranks
  bool finite = true;  ///< false: the step is dropped and changes nothing
  double norm = 0;     ///< of the gradient before clipping; only with clip_norm
};

/// Seconds of the parts of a step on the GPU, by its own clock. Of several batches, all but the last one's
/// backward pass counts as forward. `sums`: what the update waited for all-reduces.
struct DeviceTimes {
  double forward = 0, backward = 0, sums = 0, update = 0;
};

/// Steps that a rank's GPU makes by itself, each as one graph: batch, forward, backward, all-reduce, update.
/// Weights, optimizer and running statistics stay in GPU memory between steps; the host's copies are stale
/// until move_state_to_host(). Several steps may be launched before the outcome of the first is waited for.
/// One thread. Errors come from the Communicator, else from the GPU (kSystem).
template <class T>
class DeviceSteps {
 public:
  static constexpr std::size_t kMaxInFlight = 4;
  /// Limit of batches per step: a graph contains the launches of all.
  static constexpr int kMaxBatches = 64;

  virtual ~DeviceSteps() = default;

  /// Call before the first step and after each detach().
  virtual Result<> attach(const DeviceStepSettings& settings) = 0;
  /// Stops the use of the communicator. Steps in flight must be finished or dropped before.
  virtual void detach() = 0;

  /// Keeps the training images in GPU memory. Returns false if the data set draws them or the GPU has no
  /// room.
  virtual Result<bool> keep_images(const Dataset& data) = 0;
  /// Sets this rank's samples of the epoch, in order; for kept images.
  virtual Result<> set_order(std::span<const std::uint32_t> order) = 0;
  /// Must precede the first batch of a size: a library's kernels are chosen and loaded. No step may be in
  /// flight, since CUDA may wait for it, and so for other ranks.
  virtual Result<> prepare(std::size_t batch) = 0;

  /// Move the model's weights and running statistics and the optimizer from the host to the GPU, and back.
  virtual Result<> move_state_to_gpu(Optimizer<T>& optimizer) = 0;
  virtual Result<> move_state_to_host(Optimizer<T>& optimizer) = 0;

  virtual std::size_t in_flight() const = 0;
  /// Sends the next batch of the next step, as in Model::forward, if the GPU does not hold the images.
  virtual Result<> send(const T* images, std::span<const std::uint8_t> labels) = 0;
  /// Requires fewer than kMaxInFlight steps in flight, and none if undo is set.
  virtual Result<> launch(const DeviceStep& step) = 0;
  /// Waits for the oldest step in flight.
  virtual Result<ReducedGradient> finish() = 0;
  /// Returns the times of the step that was finished last.
  virtual Result<DeviceTimes> last_times() = 0;
  /// Drops the steps in flight: their ranks are gone, and their all-reduces are lost. If undo was set, the
  /// state becomes that after the last finished step. Fails with kTimeout if the GPU stays at work.
  virtual Result<> drop() = 0;
};

/// For GPU calls whose failure no caller can handle: throws std::runtime_error.
inline void must_work(const Result<>& done) {
  if (!done) throw std::runtime_error("the GPU failed: " + done.error().text);
}

/// The remaining steps of an epoch on one rank's GPU. Some steps are launched ahead of the one that is waited
/// for, so that the GPU never waits for the host. All ranks launch and wait in the same order.
template <class T>
class DeviceEpoch {
 public:
  /// Returns a step without its place in the order. `ahead`: the number of unfinished steps before that step.
  using MakePlan = std::function<DeviceStep(std::uint64_t ahead, std::span<const std::uint32_t> samples)>;

  /// `device` and `data` must outlive the epoch. `batches`: per step. `most`: limit of steps in flight, at
  /// most kMaxInFlight.
  static Result<std::unique_ptr<DeviceEpoch>> begin(DeviceSteps<T>& device, const Dataset& data,
                                                    std::vector<std::uint32_t> order, std::size_t batch_size,
                                                    std::size_t batches, int border, std::size_t most) {
    std::unique_ptr<DeviceEpoch> epoch(new DeviceEpoch(device, std::move(order), batch_size, batches, most));
    const std::size_t samples = epoch->order_.size();
    for (const std::size_t batch : {std::min(samples, batch_size), samples % batch_size}) {
      DDP_TRY(batch == 0 ? Result<>() : device.prepare(batch));
    }
    const auto held = DDP_TRY(device.keep_images(data));
    if (held) {
      DDP_TRY(device.set_order(epoch->order_));
    } else {
      epoch->loader_ = std::make_unique<BatchLoader<T>>(data, epoch->order_, batch_size, border);
    }
    return epoch;
  }

  std::size_t steps_left() const { return steps() - finished_; }
  bool is_idle() const { return launched_ == finished_; }
  /// Launches as many steps as may be in flight. The caller reads the state only after `until_read` more
  /// steps, and no step beyond them is launched. `until_read` counts only if is_idle().
  Result<> launch_ahead(std::uint64_t until_read, const MakePlan& plan) {
    if (is_idle()) {
      const std::size_t left = steps() - launched_;
      may_launch_ = launched_ + static_cast<std::size_t>(std::min<std::uint64_t>(left, until_read));
    }
    for (; launched_ < may_launch_ && launched_ - finished_ < most_; ++launched_) {
      const std::span<const std::uint32_t> mine = samples(launched_);
      DeviceStep step = plan(launched_ - finished_, mine);
      step.first = launched_ * step_size_;
      step.size = mine.size();
      for (std::size_t sent = 0; loader_ && sent < mine.size();) {
        const auto& batch = loader_->next();
        DDP_TRY(device_.send(batch.images.data(), batch.labels));
        sent += batch.samples.size();
      }
      DDP_TRY(device_.launch(step));
    }
    return {};
  }

  /// Waits for the oldest step in flight.
  Result<ReducedGradient> finish() {
    const auto outcome = device_.finish();
    if (outcome) ++finished_;
    return outcome;
  }

  /// Returns the number of this rank's images in the last finished step.
  std::size_t images() const { return samples(finished_ - 1).size(); }
  /// Returns the number of batches in that step.
  int batches() const { return static_cast<int>((images() + batch_size_ - 1) / batch_size_); }

 private:
  DeviceEpoch(DeviceSteps<T>& device, std::vector<std::uint32_t> order, std::size_t batch_size,
              std::size_t batches, std::size_t most)
      : device_(device),
        order_(std::move(order)),
        batch_size_(batch_size),
        step_size_(batch_size * batches),
        most_(most) {}
  std::size_t steps() const { return (order_.size() + step_size_ - 1) / step_size_; }
  std::span<const std::uint32_t> samples(std::size_t step) const {
    const std::size_t first = step * step_size_;
    return std::span(order_).subspan(first, std::min(step_size_, order_.size() - first));
  }

  DeviceSteps<T>& device_;
  std::vector<std::uint32_t> order_;
  std::size_t batch_size_;
  std::size_t step_size_;  ///< samples
  std::size_t most_;
  std::unique_ptr<BatchLoader<T>> loader_;  ///< null if the GPU holds the images
  std::size_t launched_ = 0, finished_ = 0;
  std::size_t may_launch_ = 0;  ///< limit of launched_ until the caller reads the state
};

/// GPU memory in which operations between ranks are measured. Repeated operations are one captured graph: a
/// non-blocking NCCL communicator starts a thread for each call, and none for a graph. One thread; errors as
/// in Communicator.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  /// All ranks call it with the same size. `communicator` has operations on GPU memory, and outlives the
  /// buffer.
  static Result<std::unique_ptr<DeviceBuffer>> make(Communicator& communicator, std::size_t bytes);

  virtual const DeviceMemory& memory() const = 0;
  /// Copy from the host, `offset` bytes behind the beginning of the memory, and to the host, from its
  /// beginning.
  virtual Result<> put(std::span<const std::byte> from, std::size_t offset = 0) = 0;
  virtual Result<> get(std::span<std::byte> to) = 0;
  /// Sets the operation of the next calls.
  virtual void choose(const DeviceOperation& operation) = 0;
  /// Carries out the operation once, without a graph. The first one makes the connections.
  virtual Result<> run() = 0;
  /// Carries out the operation `count` times, as one graph, which the first call with this count captures.
  /// Returns the microseconds on the GPU, by its own events: the host's polling takes no part.
  virtual Result<double> replay(int count) = 0;
};

/// Succeeds if this build and this machine can train on a GPU. Else the error is kUsage with the reason:
/// "this build has no GPU code …" or "no usable NVIDIA GPU: …" (count_gpus()). Fast, and touches no
/// GPU memory.
Result<> can_use_gpu();
/// Returns true if work on a GPU, or NCCL, did not end in time. A normal end of the program may then wait for
/// it forever: the program should flush its output and call _exit.
bool gpus_are_given_up();
/// Returns the identity of the GPU of `local_rank`, which other ranks compare with theirs:
/// CUDA_VISIBLE_DEVICES may give one GPU to several. Errors as above, or choose_gpu()'s.
Result<std::string> own_gpu(int local_rank);
/// Returns the number of the GPU on which make_device_model() computes for a local rank; -1: none.
int gpu_of(int local_rank);
/// Returns what kind of GPU that is: "NVIDIA H100 80GB HBM3"; "unknown GPU" if CUDA cannot say.
std::string gpu_model(int local_rank);
/// Returns what tells that GPU from all others, also those of other machines.
std::string gpu_key(int local_rank);

/// The GPU kernels count parameters in int.
inline constexpr std::size_t kMostGpuParameters = 2'000'000'000;

struct DeviceModelSettings {
  int max_batch = 1;
  bool bf16 = false;  ///< stores activations and the weights that kernels read as bf16; T is float
  bool tf32 = false;  ///< an Mlp's products may use TF32
};

/// Returns the model of conv_net_layout() or mlp_layout(), computed on GPU `local_rank` modulo the number of
/// GPUs. It has at most kMostGpuParameters. Parameters, gradients and running statistics stay on the host, as
/// in every Model. Each step copies them to the GPU and back, so any sum and any update can be made. The
/// model's device_steps() make whole steps on the GPU. While they have the state (from move_state_to_gpu()
/// to move_state_to_host()), evaluate() uses theirs. A GPU call that fails later throws std::runtime_error.
template <class T>
Result<std::unique_ptr<Model<T>>> make_device_model(ModelLayout layout, const DeviceModelSettings& settings);

}  // namespace ddp::train
