#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/image_size.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/gpu/device_net.h"
#include "apps/train/kernels/gpu/update_body.h"
#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

/// The DeviceSteps of one DeviceNet.
template <class T>
class NetSteps final : public DeviceSteps<T> {
 public:
  /// `model` holds weights and running statistics for the host. `net` and `model` must outlive the steps.
  static Result<std::unique_ptr<NetSteps>> make(DeviceNet<T>& net, Model<T>& model) {
    std::unique_ptr<NetSteps> steps(new NetSteps(net, model));
    static_assert(DeviceSteps<T>::kMaxInFlight == kernels::device::StepSlots::kCount);
    for (CudaEvent& event : steps->events_)
      event = DDP_TRY(make_cuda_event());
    return steps;
  }

  /// Frees nothing while the GPU is at work, as in DeviceNet.
  ~NetSteps() override {
    if (net_.is_idle()) return;
    (void)batches_.release();
    for (DeviceBytes* bytes : {&sent_, &kept_, &earlier_, &images_, &order_})
      (void)bytes->release();
  }

  Result<> attach(const DeviceStepSettings& settings) override {
    DDP_TRY(net_.load());
    net_.forget_graphs();
    ranks_ = settings.ranks;
    drop_timeout_ = settings.drop_timeout;
    hyperparameters_ = {};
    hyperparameters_.update = update_settings(settings);
    hyperparameters_.ranks = ranks_ == nullptr ? 1 : ranks_->world_size();
    if (settings.undo && kept_ == nullptr) kept_ = DDP_TRY(make_device_bytes(net_.memory().learnt_bytes()));
    max_batches_ = static_cast<std::size_t>(settings.batches);
    if (max_batches_ > 1 && earlier_ == nullptr) earlier_ = DDP_TRY(make_device_bytes(net_.gradient_bytes()));
    hyperparameters_.batch = settings.batch;
    hyperparameters_.earlier = earlier_.get();
    hyperparameters_.sent = sent_.get();
    hyperparameters_.kept = settings.undo ? kept_.get() : nullptr;
    if (settings.timed && marks_.front() == nullptr) {
      for (CudaEvent& mark : marks_)
        mark = DDP_TRY(make_cuda_event(true));
    }
    hyperparameters_.marks = settings.timed ? &marks_ : nullptr;
    if (ranks_ == nullptr) return {};
    hyperparameters_.buckets = settings.buckets;
    if (hyperparameters_.buckets.empty()) hyperparameters_.buckets = {{0, net_.gradient_bytes() / sizeof(T)}};
    hyperparameters_.all_reduce = [ranks = ranks_](void* numbers, std::size_t count, cudaStream_t stream) {
      return ranks->enqueue_on_device(all_reduce(numbers, count), stream);
    };
    ranks_->on_end(net_.graph_owner());
    if (const auto memory = ranks_->share_device_memory(net_.gradient_bytes()); !memory.bytes.empty())
      net_.place_gradients(memory.bytes.data());
    return {};
  }

  void detach() override {
    net_.place_gradients(nullptr);  // also forgets the graphs
    hyperparameters_ = {};
    ranks_ = nullptr;
  }

  Result<bool> hold(const Dataset& data) override {
    // Holds the images once for all epochs, since holding forgets the graphs. Else this rank alone might make
    // a first step where the others replay a graph.
    if (hold_size_ == data.size()) return held_.images != nullptr;
    hold_size_ = data.size();
    held_ = {};
    if (data.draw) return false;
    const std::size_t image_bytes = data.size() * kImagePixels;
    auto images = make_device_bytes(image_bytes + data.size());
    auto order = make_device_bytes(data.size() * sizeof(std::uint32_t));
    if (!images || !order) return false;  // no room: the host sends batches
    DDP_TRY(net_.copy(images->get(), data.images.data(), data.images.size(), cudaMemcpyHostToDevice));
    DDP_TRY(net_.copy(images->get() + image_bytes, data.labels.data(), data.labels.size(),
                      cudaMemcpyHostToDevice));
    DDP_TRY(net_.wait());
    images_ = std::move(*images);
    order_ = std::move(*order);
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(images_.get());
    held_ = {bytes, bytes + image_bytes, reinterpret_cast<const std::uint32_t*>(order_.get())};
    net_.forget_graphs();
    return true;
  }

  Result<> set_order(std::span<const std::uint32_t> order) override {
    DDP_TRY(net_.copy(order_.get(), order.data(), order.size_bytes(), cudaMemcpyHostToDevice));
    return net_.wait();
  }

  Result<> prepare(std::size_t batch) override { return net_.prepare(static_cast<int>(batch)); }
  Result<> take(Optimizer<T>& optimizer) override {
    const auto& m = net_.memory();
    DDP_TRY(net_.put_parameters(model_.parameters()));
    DDP_TRY(net_.put(m.running, std::span<const T>(model_.running_statistics())));
    T* to = m.first;
    for (const auto& one : optimizer.state()) {
      DDP_TRY(net_.put(to, std::span<const T>(one.values)));
      to = m.second;
    }
    kernels::device::StepState state{};
    state.steps = optimizer.steps();
    DDP_TRY(net_.copy(m.state, &state, sizeof state, cudaMemcpyHostToDevice));
    const auto taken = net_.wait();
    has_state_ = taken.has_value();
    return taken;
  }

  Result<> give(Optimizer<T>& optimizer) override {
    const auto& m = net_.memory();
    DDP_TRY(net_.get(model_.parameters(), m.parameters));
    DDP_TRY(net_.get(model_.running_statistics(), m.running));
    const T* from = m.first;
    for (const auto& one : optimizer.state()) {
      DDP_TRY(net_.get(one.values, from));
      from = m.second;
    }
    const auto state = DDP_TRY(net_.state());
    optimizer.set_steps(state.steps);
    has_state_ = false;
    return {};
  }

  /// The GPU has the state, and the host's is stale: from take() to give().
  bool has_state() const { return has_state_; }
  std::size_t in_flight() const override { return launched_ - finished_; }
  /// Uses pinned memory: a copy from other memory waits for the stream, and so for an all-reduce that may
  /// never end.
  Result<> send(const T* images, std::span<const std::uint8_t> labels) override {
    if (batches_ == nullptr) {
      const std::size_t step_bytes = net_.batch_bytes() * max_batches_;
      auto batches = DDP_TRY(make_pinned_bytes(step_bytes * DeviceSteps<T>::kMaxInFlight));
      auto sent = DDP_TRY(make_device_bytes(step_bytes));
      batches_ = std::move(batches);
      sent_ = std::move(sent);
      hyperparameters_.sent = sent_.get();
    }
    const std::size_t step = launched_ % DeviceSteps<T>::kMaxInFlight;
    const auto from = net_.address_in(batches_.get(), step * max_batches_ + sent_count_);
    std::memcpy(from.images, images, net_.image_bytes() * labels.size());
    std::memcpy(from.labels, labels.data(), labels.size());
    return net_.put_batch(from.images, {from.labels, labels.size()},
                          net_.address_in(sent_.get(), sent_count_++));
  }

  Result<> launch(const DeviceStep& step) override {
    hyperparameters_.as_graph = step.as_graph;
    hyperparameters_.inject_nan = step.inject_nan;
    const bool held = std::exchange(sent_count_, 0) == 0;
    for (const GradientBucket& bucket : hyperparameters_.buckets)
      ranks_->launched(all_reduce(nullptr, bucket.end - bucket.begin));
    DDP_TRY(net_.step(static_cast<int>(step.size), {step.lr, step.first}, hyperparameters_,
                      held ? &held_ : nullptr));
    DDP_TRY(DDP_CUDA_CHECK(cudaEventRecord, event(launched_), net_.stream()));
    ++launched_;
    return {};
  }

  Result<ReducedGradient> finish() override {
    DDP_TRY(wait_for(event(finished_)));
    const kernels::device::StepOutcome& outcome = net_.outcome(finished_++);
    return ReducedGradient{outcome.loss, outcome.skip == 0, outcome.norm};
  }

  Result<DeviceTimes> last_times() override {
    DeviceTimes times;
    double DeviceTimes::*const parts[] = {&DeviceTimes::forward, &DeviceTimes::backward, &DeviceTimes::sums,
                                          &DeviceTimes::update};
    for (std::size_t i = 0; i < std::size(parts); ++i)
      times.*parts[i] = DDP_TRY(seconds_between(marks_[i].get(), marks_[i + 1].get()));
    return times;
  }

  Result<> drop() override {
    const bool half = in_flight() != 0;
    finished_ = launched_;
    // A revoke or a lost peer may be unnoticed until now. This wait notices it, and so aborts the
    // all-reduces.
    const auto is_idle = [this]() -> Result<bool> { return net_.is_idle(); };
    if (ranks_ != nullptr && !net_.is_idle()) (void)ranks_->wait_for_device(is_idle, "all-reduce");
    // An aborted all-reduce lets the stream continue; its result is undefined.
    DDP_TRY(net_.wait(drop_timeout_));
    if (!half || hyperparameters_.kept == nullptr) return {};
    DDP_TRY(net_.take_back(hyperparameters_.kept));
    return net_.wait(drop_timeout_);
  }

 private:
  static DeviceOperation all_reduce(void* numbers, std::size_t count) {
    constexpr auto kType = sizeof(T) == 8 ? NumberType::kFloat64 : NumberType::kFloat32;
    return {CollectiveKind::kAllReduce, numbers, count, kType};
  }
  static kernels::device::UpdateSettings update_settings(const DeviceStepSettings& settings) {
    const OptimizerSettings& optimizer = settings.optimizer;
    return {optimizer.kind == OptimizerKind::kAdamw,
            optimizer.momentum,
            optimizer.beta1,
            optimizer.beta2,
            optimizer.epsilon,
            optimizer.weight_decay,
            settings.clip_value,
            settings.clip_norm};
  }
  NetSteps(DeviceNet<T>& net, Model<T>& model) : net_(net), model_(model) {}
  cudaEvent_t event(std::size_t step) const { return events_[step % DeviceSteps<T>::kMaxInFlight].get(); }
  Result<> wait_for(cudaEvent_t event) {
    if (ranks_ == nullptr) return DDP_CUDA_CHECK(cudaEventSynchronize, event);
    const auto is_done = [event] { return cuda_is_done(cudaEventQuery(event), "cudaEventQuery"); };
    Result<> waited;
    for (std::size_t i = 0; waited && i < hyperparameters_.buckets.size(); ++i)
      waited = ranks_->wait_for_device(is_done, "all-reduce");
    return waited;
  }

  DeviceNet<T>& net_;
  Model<T>& model_;
  bool has_state_ = false;
  PinnedBytes batches_;         ///< of kMaxInFlight steps; null if the GPU holds the images
  DeviceBytes sent_;            ///< the batches of one step, likewise
  std::size_t sent_count_ = 0;  ///< batches of the next step
  std::size_t max_batches_ = 1;
  std::array<CudaEvent, DeviceSteps<T>::kMaxInFlight> events_;
  StepMarks marks_;
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
