#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

/// Settings of the steps from attach() to detach().
struct DeviceStepSettings {
  OptimizerSettings optimizer{};
  double clip_value = 0, clip_norm = 0;  ///< 0: off
  Communicator* ranks = nullptr;         ///< sums the gradients; null: this rank is alone
  std::vector<GradientBucket> buckets;   ///< of plan_buckets(); empty: one of all gradients
  int batch = 0;      ///< samples of a batch; a step may have several. 0: a step is one batch
  int batches = 1;    ///< limit of batches per step
  bool undo = false;  ///< drop() must restore the state before the step in flight
  std::chrono::milliseconds drop_timeout{5'000};  ///< for drop() to wait for the GPU
};

/// The input of one step.
struct DeviceStep {
  double lr = 0;
  std::size_t first = 0;    ///< position of its first sample in the order (set_order())
  std::size_t size = 0;     ///< samples
  bool as_graph = true;     ///< false: single launches; the same on all ranks
  bool inject_nan = false;  ///< into this rank's gradient; requires as_graph false
};

/// The outcome of a step, the same on all ranks.
struct DeviceOutcome {
  double loss = 0;     ///< mean over the ranks
  bool finite = true;  ///< false: the step changed nothing
  double norm = 0;     ///< gradient norm before clipping; only with clip_norm
};

/// Steps that a rank's GPU makes by itself, each as one graph: batch, forward, backward, all-reduce, update.
/// Weights, optimizer and running statistics stay in GPU memory between steps; the host's copies are stale
/// until give(). Several steps may be launched before the outcome of the first is waited for. One thread.
/// Errors come from the Communicator, else from the GPU (kSystem).
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
  virtual Result<bool> hold(const Dataset& data) = 0;
  /// Sets this rank's samples of the epoch, in order; for held images.
  virtual Result<> set_order(std::span<const std::uint32_t> order) = 0;
  /// Must precede the first batch of a size: a library's kernels are chosen and loaded. No step may be in
  /// flight, since CUDA may wait for it, and so for other ranks.
  virtual Result<> prepare(std::size_t batch) = 0;

  /// Copy the model's weights and running statistics and the optimizer from the host to the GPU, and back.
  virtual Result<> take(Optimizer<T>& optimizer) = 0;
  virtual Result<> give(Optimizer<T>& optimizer) = 0;

  virtual std::size_t in_flight() const = 0;
  /// Sends the next batch of the next step, as in Model::forward, if the GPU does not hold the images.
  virtual Result<> send(const T* images, std::span<const std::uint8_t> labels) = 0;
  /// Requires fewer than kMaxInFlight steps in flight, and none if undo is set.
  virtual Result<> launch(const DeviceStep& step) = 0;
  /// Waits for the oldest step in flight.
  virtual Result<DeviceOutcome> finish() = 0;
  /// Drops the steps in flight: their ranks are gone, and their all-reduces are lost. If undo was set, the
  /// state becomes that after the last finished step. Fails with kTimeout if the GPU stays at work.
  virtual Result<> drop() = 0;
};

/// For GPU calls whose failure no caller can handle: throws std::runtime_error.
inline void must_work(const Result<>& done) {
  if (!done) throw std::runtime_error("the GPU failed: " + done.error().text);
}

}  // namespace ddp::train
