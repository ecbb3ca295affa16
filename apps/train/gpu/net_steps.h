#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>

#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/device_net.h"
#include "apps/train/gpu/device_steps.h"
#include "apps/train/model/model.h"

namespace ddp::train {

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
