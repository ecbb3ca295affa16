#include "apps/train/gpu/device_epoch.h"

#include <algorithm>
#include <utility>

namespace ddp::train {

template <class T>
auto DeviceEpoch<T>::begin(DeviceSteps<T>& device, const Dataset& data, std::vector<std::uint32_t> order,
                           std::size_t batch_size, std::size_t batches, int border, std::size_t most)
    -> Result<std::unique_ptr<DeviceEpoch>> {
  std::unique_ptr<DeviceEpoch> epoch(new DeviceEpoch(device, std::move(order), batch_size, batches, most));
  const std::size_t samples = epoch->order_.size();
  for (const std::size_t batch : {std::min(samples, batch_size), samples % batch_size}) {
    if (auto done = batch == 0 ? Result<>() : device.prepare(batch); !done) return done.error();
  }
  const auto held = device.hold(data);
  if (!held) return held.error();
  if (*held) {
    if (auto done = device.set_order(epoch->order_); !done) return done.error();
  } else {
    epoch->loader_ = std::make_unique<BatchLoader<T>>(data, epoch->order_, batch_size, border);
  }
  return epoch;
}

template <class T>
std::span<const std::uint32_t> DeviceEpoch<T>::samples(std::size_t step) const {
  const std::size_t first = step * step_size_;
  return std::span(order_).subspan(first, std::min(step_size_, order_.size() - first));
}

template <class T>
Result<> DeviceEpoch<T>::launch_ahead(std::uint64_t until_read, const MakePlan& plan) {
  if (is_idle()) {
    const std::size_t left = steps() - launched_;
    may_launch_ = launched_ + static_cast<std::size_t>(std::min<std::uint64_t>(left, until_read));
  }
  for (; launched_ < may_launch_ && launched_ - finished_ < most_; ++launched_) {
    const std::span<const std::uint32_t> mine = samples(launched_);
    const Plan planned = plan(launched_ - finished_, mine);
    DeviceStep step;
    step.lr = planned.lr;
    step.as_graph = planned.as_graph;
    step.inject_nan = planned.inject_nan;
    step.first = launched_ * step_size_;
    step.size = mine.size();
    for (std::size_t sent = 0; loader_ && sent < mine.size();) {
      const auto& batch = loader_->next();
      if (auto done = device_.send(batch.images.data(), batch.labels); !done) return done;
      sent += batch.samples.size();
    }
    if (auto done = device_.launch(step); !done) return done;
  }
  return {};
}

template <class T>
Result<DeviceOutcome> DeviceEpoch<T>::finish() {
  const auto outcome = device_.finish();
  if (outcome) ++finished_;
  return outcome;
}

template class DeviceEpoch<float>;
template class DeviceEpoch<double>;

}  // namespace ddp::train
