#include "apps/train/gpu/net_steps.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "apps/train/data/image_size.h"
#include "apps/train/gpu/cuda_runtime.h"

namespace ddp::train {

namespace {

template <class T>
DeviceOperation all_reduce(void* numbers, std::size_t count) {
  constexpr auto kType = std::is_same_v<T, double> ? DeviceType::kFloat64 : DeviceType::kFloat32;
  return {DeviceOperation::Kind::kAllReduce, numbers, count, kType};
}

kernels::device::UpdateSettings update_settings(const DeviceStepSettings& settings) {
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

}  // namespace

template <class T>
auto NetSteps<T>::make(DeviceNet<T>& net, Model<T>& model) -> Result<std::unique_ptr<NetSteps>> {
  std::unique_ptr<NetSteps> steps(new NetSteps(net, model));
  static_assert(DeviceSteps<T>::kMaxInFlight == kernels::device::StepSlots::kCount);
  for (CudaEvent& event : steps->events_) {
    auto made = make_cuda_event();
    if (!made) return made.error();
    event = std::move(*made);
  }
  return steps;
}

template <class T>
NetSteps<T>::~NetSteps() {
  if (net_.is_idle()) return;
  (void)batches_.release();
  for (DeviceBytes* bytes : {&sent_, &kept_, &earlier_, &images_, &order_})
    (void)bytes->release();
}

template <class T>
Result<> NetSteps<T>::attach(const DeviceStepSettings& settings) {
  if (auto loaded = net_.load(); !loaded) return loaded;
  net_.forget_graphs();
  ranks_ = settings.ranks;
  drop_timeout_ = settings.drop_timeout;
  hyperparameters_ = {};
  hyperparameters_.update = update_settings(settings);
  hyperparameters_.ranks = ranks_ == nullptr ? 1 : ranks_->world_size();
  if (settings.undo && kept_ == nullptr) {
    auto kept = make_device_bytes(net_.memory().learnt_bytes());
    if (!kept) return kept.error();
    kept_ = std::move(*kept);
  }
  max_batches_ = static_cast<std::size_t>(settings.batches);
  if (max_batches_ > 1 && earlier_ == nullptr) {
    auto earlier = make_device_bytes(net_.gradient_bytes());
    if (!earlier) return earlier.error();
    earlier_ = std::move(*earlier);
  }
  hyperparameters_.batch = settings.batch;
  hyperparameters_.earlier = earlier_.get();
  hyperparameters_.sent = sent_.get();
  hyperparameters_.kept = settings.undo ? kept_.get() : nullptr;
  if (ranks_ == nullptr) return {};
  hyperparameters_.buckets = settings.buckets;
  if (hyperparameters_.buckets.empty()) hyperparameters_.buckets = {{0, net_.gradient_bytes() / sizeof(T)}};
  hyperparameters_.all_reduce = [ranks = ranks_](void* numbers, std::size_t count, cudaStream_t stream) {
    return ranks->enqueue_on_device(all_reduce<T>(numbers, count), stream);
  };
  ranks_->on_end(net_.graph_owner());
  if (const auto memory = ranks_->share_device_memory(net_.gradient_bytes()); !memory.bytes.empty())
    net_.place_gradients(memory.bytes.data());
  return {};
}

template <class T>
void NetSteps<T>::detach() {
  net_.place_gradients(nullptr);  // also forgets the graphs
  hyperparameters_ = {};
  ranks_ = nullptr;
}

template <class T>
Result<bool> NetSteps<T>::hold(const Dataset& data) {
  // Holds the images once for all epochs, since holding forgets the graphs. Else this rank alone might make a
  // first step where the others replay a graph.
  if (hold_size_ == data.size()) return held_.images != nullptr;
  hold_size_ = data.size();
  held_ = {};
  if (data.draw) return false;
  const std::size_t image_bytes = data.size() * kImagePixels;
  auto images = make_device_bytes(image_bytes + data.size());
  auto order = make_device_bytes(data.size() * sizeof(std::uint32_t));
  if (!images || !order) return false;  // no room: the host sends batches
  const auto copy = [&](std::byte* to, std::span<const std::uint8_t> from) {
    return cuda_check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, net_.stream()),
                      "cudaMemcpyAsync");
  };
  if (auto done = copy(images->get(), data.images); !done) return done.error();
  if (auto done = copy(images->get() + image_bytes, data.labels); !done) return done.error();
  if (auto done = net_.wait(); !done) return done.error();
  images_ = std::move(*images);
  order_ = std::move(*order);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(images_.get());
  held_ = {bytes, bytes + image_bytes, reinterpret_cast<const std::uint32_t*>(order_.get())};
  net_.forget_graphs();
  return true;
}

template <class T>
Result<> NetSteps<T>::set_order(std::span<const std::uint32_t> order) {
  const auto answer =
      cudaMemcpyAsync(order_.get(), order.data(), order.size_bytes(), cudaMemcpyHostToDevice, net_.stream());
  if (auto done = cuda_check(answer, "cudaMemcpyAsync"); !done) return done;
  return net_.wait();
}

template <class T>
Result<> NetSteps<T>::take(Optimizer<T>& optimizer) {
  const auto& m = net_.memory();
  if (auto done = net_.put_parameters(model_.parameters()); !done) return done;
  if (auto done = net_.put(m.running, std::span<const T>(model_.running_statistics())); !done) return done;
  T* to = m.first;
  for (const auto& one : optimizer.state()) {
    if (auto done = net_.put(to, std::span<const T>(one.values)); !done) return done;
    to = m.second;
  }
  kernels::device::StepState state{};
  state.steps = optimizer.steps();
  const auto answer = cudaMemcpyAsync(m.state, &state, sizeof state, cudaMemcpyHostToDevice, net_.stream());
  if (auto done = cuda_check(answer, "cudaMemcpyAsync"); !done) return done;
  const auto taken = net_.wait();
  has_state_ = taken.has_value();
  return taken;
}

template <class T>
Result<> NetSteps<T>::give(Optimizer<T>& optimizer) {
  const auto& m = net_.memory();
  if (auto done = net_.get(model_.parameters(), m.parameters); !done) return done;
  if (auto done = net_.get(model_.running_statistics(), m.running); !done) return done;
  const T* from = m.first;
  for (const auto& one : optimizer.state()) {
    if (auto done = net_.get(one.values, from); !done) return done;
    from = m.second;
  }
  const auto state = net_.state();
  if (!state) return state.error();
  optimizer.set_steps(state->steps);
  has_state_ = false;
  return {};
}

/// Uses pinned memory: a copy from other memory waits for the stream, and so for an all-reduce that may never
/// end.
template <class T>
Result<> NetSteps<T>::send(const T* images, std::span<const std::uint8_t> labels) {
  if (batches_ == nullptr) {
    const std::size_t step_bytes = net_.batch_bytes() * max_batches_;
    auto batches = make_pinned_bytes(step_bytes * DeviceSteps<T>::kMaxInFlight);
    if (!batches) return batches.error();
    auto sent = make_device_bytes(step_bytes);
    if (!sent) return sent.error();
    batches_ = std::move(*batches);
    sent_ = std::move(*sent);
    hyperparameters_.sent = sent_.get();
  }
  const std::size_t step = launched_ % DeviceSteps<T>::kMaxInFlight;
  const auto from = net_.address_in(batches_.get(), step * max_batches_ + sent_count_);
  std::memcpy(from.images, images, net_.image_bytes() * labels.size());
  std::memcpy(from.labels, labels.data(), labels.size());
  return net_.put_batch(from.images, {from.labels, labels.size()},
                        net_.address_in(sent_.get(), sent_count_++));
}

template <class T>
Result<> NetSteps<T>::launch(const DeviceStep& step) {
  hyperparameters_.as_graph = step.as_graph;
  hyperparameters_.inject_nan = step.inject_nan;
  const bool held = std::exchange(sent_count_, 0) == 0;
  for (const GradientBucket& bucket : hyperparameters_.buckets)
    ranks_->launched(all_reduce<T>(nullptr, bucket.end - bucket.begin));
  auto done = net_.step(static_cast<int>(step.size), {step.lr, step.first}, hyperparameters_,
                        held ? &held_ : nullptr);
  if (!done) return done;
  done = cuda_check(cudaEventRecord(event(launched_), net_.stream()), "cudaEventRecord");
  if (!done) return done;
  ++launched_;
  return {};
}

template <class T>
Result<> NetSteps<T>::wait_for(cudaEvent_t event) {
  if (ranks_ == nullptr) return cuda_check(cudaEventSynchronize(event), "cudaEventSynchronize");
  const auto is_done = [event] { return cuda_is_done(cudaEventQuery(event), "cudaEventQuery"); };
  Result<> waited;
  for (std::size_t i = 0; waited && i < hyperparameters_.buckets.size(); ++i)
    waited = ranks_->wait_for_device(is_done, "all-reduce");
  return waited;
}

template <class T>
Result<DeviceOutcome> NetSteps<T>::finish() {
  if (auto done = wait_for(event(finished_)); !done) return done.error();
  const kernels::device::StepOutcome& outcome = net_.outcome(finished_++);
  return DeviceOutcome{outcome.loss, outcome.skip == 0, outcome.norm};
}

template <class T>
Result<> NetSteps<T>::drop() {
  const bool half = in_flight() != 0;
  finished_ = launched_;
  // A revoke or a lost peer may be unnoticed until now. This wait notices it, and so aborts the all-reduces.
  const auto is_idle = [this]() -> Result<bool> { return net_.is_idle(); };
  if (ranks_ != nullptr && !net_.is_idle()) (void)ranks_->wait_for_device(is_idle, "all-reduce");
  // An aborted all-reduce lets the stream continue; its result is undefined.
  if (auto done = net_.wait(drop_timeout_); !done) return done;
  if (!half || hyperparameters_.kept == nullptr) return {};
  if (auto done = net_.take_back(hyperparameters_.kept); !done) return done;
  return net_.wait(drop_timeout_);
}

template class NetSteps<float>;
template class NetSteps<double>;

}  // namespace ddp::train
