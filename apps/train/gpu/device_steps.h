#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "apps/train/collectives/device_all_reducer.h"
#include "apps/train/data/dataset.h"
#include "apps/train/model/optimizer.h"
#include "base/result.h"

namespace ddp::train {

/// How steps are made from now on.
struct DeviceStepSettings {
  OptimizerSettings optimizer{};
  double clip_value = 0, clip_norm = 0;     ///< 0: off
  DeviceAllReducer* all_reducer = nullptr;  ///< null: this rank is alone
  int ranks = 1;                            ///< that it sums over
  bool undo = false;                        ///< drop() must give back the state before the step under way
};

/// What one step is made of.
template <class T>
struct DeviceStep {
  double lr = 0;
  std::size_t first = 0;      ///< place of its first sample in the order (set_order())
  std::size_t size = 0;       ///< samples
  const T* images = nullptr;  ///< null: the GPU holds the images, else the batch, as of Model::forward
  std::span<const std::uint8_t> labels{};
  bool as_graph = true;     ///< false: by single launches; the same on all ranks
  bool inject_nan = false;  ///< into this rank's gradient; not in a graph
};

/// What all ranks know alike after a step.
struct DeviceOutcome {
  double loss = 0;     ///< mean over the ranks
  bool finite = true;  ///< else nothing was changed
  double norm = 0;     ///< before it was clipped; only with clip_norm
};

/// Steps that a rank's GPU makes by itself, each as one graph: batch, forward, backward, the ranks' sum,
/// update. Weights, optimizer and running statistics stay in its memory from step to step; the host's are old
/// until give(). A step is launched, and some others behind it, before its outcome is waited for. One thread.
/// Errors: of DeviceAllReducer, else the GPU's (kSystem).
template <class T>
class DeviceSteps {
 public:
  static constexpr std::size_t kMaxInFlight = 4;

  virtual ~DeviceSteps() = default;

  /// Before the first step and after each detach().
  virtual Result<> attach(const DeviceStepSettings& settings) = 0;
  /// Nothing of the ranks is used any more. What was under way must be finished or dropped.
  virtual void detach() = 0;

  /// Keeps the training images in the GPU's memory; false where they are drawn, or it has no room for them.
  virtual Result<bool> hold(const Dataset& data) = 0;
  /// The samples of the epoch in this rank's order, for held images.
  virtual Result<> set_order(std::span<const std::uint32_t> order) = 0;

  /// The model's weights and running statistics, and the optimizer: from the host to the GPU, and back.
  virtual Result<> take(Optimizer<T>& optimizer) = 0;
  virtual Result<> give(Optimizer<T>& optimizer) = 0;

  virtual std::size_t in_flight() const = 0;
  /// Not with kMaxInFlight under way, nor with one if undo is set.
  virtual Result<> launch(const DeviceStep<T>& step) = 0;
  /// Waits for the oldest.
  virtual Result<DeviceOutcome> finish() = 0;
  /// The ranks are gone, and with them the sums of what is under way: afterwards nothing is, and the state is
  /// that after the last finished step, if undo was set.
  virtual Result<> drop() = 0;
};

/// For calls of a GPU whose failure nobody can go on after: it ends in a std::runtime_error.
inline void must_work(const Result<>& done) {
  if (!done) throw std::runtime_error("the GPU failed: " + done.error().text);
}

}  // namespace ddp::train
