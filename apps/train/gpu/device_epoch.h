#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apps/train/data/batch_loader.h"
#include "apps/train/data/dataset.h"
#include "apps/train/gpu/device_steps.h"
#include "base/result.h"

namespace ddp::train {

/// The remaining steps of an epoch on one rank's GPU. Some steps are launched ahead of the one that is waited
/// for, so that the GPU never waits for the host. All ranks launch and wait in the same order.
template <class T>
class DeviceEpoch {
 public:
  /// The trainer's settings of one step.
  struct Plan {
    double lr = 0;
    bool as_graph = true;
    bool inject_nan = false;
  };
  /// Returns the plan of a step. `ahead`: the number of unfinished steps before that step.
  using MakePlan = std::function<Plan(std::uint64_t ahead, std::span<const std::uint32_t> samples)>;

  /// `device` and `data` must outlive the epoch. `batches`: per step. `most`: limit of steps in flight, at
  /// most kMaxInFlight.
  static Result<std::unique_ptr<DeviceEpoch>> begin(DeviceSteps<T>& device, const Dataset& data,
                                                    std::vector<std::uint32_t> order, std::size_t batch_size,
                                                    std::size_t batches, int border, std::size_t most);

  std::size_t steps_left() const { return steps() - finished_; }
  bool is_idle() const { return launched_ == finished_; }
  /// Launches as many steps as may be in flight. The caller reads the state only after `until_read` more
  /// steps, and no step beyond them is launched. `until_read` counts only if is_idle().
  Result<> launch_ahead(std::uint64_t until_read, const MakePlan& plan);
  /// Waits for the oldest step in flight.
  Result<DeviceOutcome> finish();
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
  std::span<const std::uint32_t> samples(std::size_t step) const;

  DeviceSteps<T>& device_;
  std::vector<std::uint32_t> order_;
  std::size_t batch_size_;
  std::size_t step_size_;  ///< samples
  std::size_t most_;
  std::unique_ptr<BatchLoader<T>> loader_;  ///< null if the GPU holds the images
  std::size_t launched_ = 0, finished_ = 0;
  std::size_t may_launch_ = 0;  ///< limit of launched_ until the caller reads the state
};

}  // namespace ddp::train
