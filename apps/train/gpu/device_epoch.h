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

/// What one rank still has of an epoch, on its GPU: some steps are launched ahead of the one that is waited
/// for, so that the GPU never waits for the host. All ranks launch and wait in the same order.
template <class T>
class DeviceEpoch {
 public:
  /// What the trainer says of a step.
  struct Plan {
    double lr = 0;
    bool as_graph = true;
    bool inject_nan = false;
  };
  /// Of the step that so many others come before, counted from the one that is waited for next.
  using MakePlan = std::function<Plan(std::uint64_t ahead, std::span<const std::uint32_t> samples)>;

  /// `device` and `data` outlive this. `most`: steps under way at a time, at most kMaxInFlight.
  static Result<std::unique_ptr<DeviceEpoch>> begin(DeviceSteps<T>& device, const Dataset& data,
                                                    std::vector<std::uint32_t> order, std::size_t batch_size,
                                                    int border, std::size_t most);

  std::size_t steps_left() const { return steps() - finished_; }
  bool is_idle() const { return launched_ == finished_; }
  /// Launches what may be under way. Nobody looks at the state before `until_read` more steps are
  /// finished; that counts only where is_idle().
  Result<> launch_ahead(std::uint64_t until_read, const MakePlan& plan);
  /// Waits for the oldest step.
  Result<DeviceOutcome> finish();
  /// Images of this rank in the step that was finished last.
  std::size_t images() const { return samples(finished_ - 1).size(); }

 private:
  DeviceEpoch(DeviceSteps<T>& device, std::vector<std::uint32_t> order, std::size_t batch_size,
              std::size_t most)
      : device_(device), order_(std::move(order)), batch_size_(batch_size), most_(most) {}
  std::size_t steps() const { return (order_.size() + batch_size_ - 1) / batch_size_; }
  std::span<const std::uint32_t> samples(std::size_t step) const;

  DeviceSteps<T>& device_;
  std::vector<std::uint32_t> order_;
  std::size_t batch_size_;
  std::size_t most_;
  std::unique_ptr<BatchLoader<T>> loader_;  ///< where the GPU does not hold the images
  std::size_t launched_ = 0, finished_ = 0;
  std::size_t may_launch_ = 0;  ///< steps, until somebody looks at the state
};

}  // namespace ddp::train
