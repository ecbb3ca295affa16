#include "apps/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "apps/train/fnv_hash.h"
#include "apps/train/kernels/sgd.h"
#include "apps/train/sampler.h"

namespace ddp::train {

namespace {

/// Completes what a communicator's error ends in: "… during all-reduce" + " of step 17".
Error of(Error error, const std::string& what) {
  error.text += " of " + what;
  return error;
}

}  // namespace

template <class T>
Trainer<T>::Trainer(const Options& options, Communicator& communicator, const DataSplit& data)
    : options_(options),
      communicator_(communicator),
      data_(data),
      net_(options.batch_size),
      velocity_(ConvNet<T>::kParameters),
      images_(static_cast<std::size_t>(options.batch_size) * kPaddedPixels),
      labels_(static_cast<std::size_t>(options.batch_size)) {
  net_.initialise(static_cast<std::uint64_t>(options.seed));
}

template <class T>
Result<> Trainer<T>::share_weights() {
  auto done = communicator_.broadcast(std::as_writable_bytes(net_.parameters()), 0);
  if (!done) return of(done.error(), "the initial weights");
  return {};
}

template <class T>
Result<double> Trainer<T>::train_step(std::span<const std::uint32_t> samples) {
  const auto labels = std::span(labels_).first(samples.size());
  fill_batch(data_.training, samples, images_.data(), labels);
  net_.forward_backward(images_.data(), labels);

  const std::span<T> sums = net_.gradients_and_loss();
  if (auto done = communicator_.all_reduce_sum(sums); !done) {
    return of(done.error(), "step " + std::to_string(step_ + 1));
  }
  const T share = T(1) / static_cast<T>(communicator_.world_size());
  const double loss = static_cast<double>(sums.back() * share);
  // The sum has carried any rank's nan to all, so all stop here together.
  if (!std::isfinite(loss)) {
    return Error{ErrorCode::kUsage, "the loss of step " + std::to_string(step_ + 1) +
                                        " is not finite: training has diverged; try a smaller --lr"};
  }
  kernels::sgd_step<T>(net_.parameters(), velocity_.span(), net_.gradients(), static_cast<T>(options_.lr),
                       static_cast<T>(options_.momentum), share);
  ++step_;
  return loss;
}

template <class T>
Result<> Trainer<T>::train_epoch(int epoch, const OnStep& on_step) {
  SamplerConfig sampler;
  sampler.samples = data_.training.size();
  sampler.world_size = communicator_.world_size();
  sampler.rank = communicator_.rank();
  sampler.seed = options_.seed;
  const auto order = sample_order(sampler, epoch);
  if (!order) return order.error();

  const std::size_t batch = static_cast<std::size_t>(options_.batch_size);
  const std::size_t steps = (order->size() + batch - 1) / batch;
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t begin = step * batch;
    const auto samples = std::span(*order).subspan(begin, std::min(batch, order->size() - begin));
    const auto loss = train_step(samples);
    if (!loss) return loss.error();
    on_step({epoch, static_cast<int>(step + 1), static_cast<int>(steps), *loss,
             samples.size() * static_cast<std::size_t>(communicator_.world_size())});
  }
  return {};
}

template <class T>
Result<> Trainer<T>::average_running_statistics() {
  const std::span<T> running = net_.running_statistics();
  if (auto done = communicator_.all_reduce_sum(running); !done) {
    return of(done.error(), "the running statistics after step " + std::to_string(step_));
  }
  const T share = T(1) / static_cast<T>(communicator_.world_size());
  for (T& value : running)
    value *= share;
  return {};
}

template <class T>
Result<Accuracy> Trainer<T>::evaluate() {
  const std::size_t world = static_cast<std::size_t>(communicator_.world_size());
  const std::size_t rank = static_cast<std::size_t>(communicator_.rank());
  const std::size_t begin = data_.test.size() * rank / world;
  const std::size_t end = data_.test.size() * (rank + 1) / world;

  std::uint64_t mine[2] = {0, end - begin};
  std::vector<std::uint32_t> samples;
  for (std::size_t at = begin; at < end; at += samples.size()) {
    samples.resize(std::min<std::size_t>(end - at, static_cast<std::size_t>(options_.batch_size)));
    std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(at));
    const auto labels = std::span(labels_).first(samples.size());
    fill_batch(data_.test, samples, images_.data(), labels);
    mine[0] += static_cast<std::uint64_t>(net_.evaluate(images_.data(), labels).correct);
  }
  const auto all = communicator_.all_gather(mine);
  if (!all) return of(all.error(), "the test results after step " + std::to_string(step_));
  Accuracy accuracy;
  for (std::size_t i = 0; i < all->size(); i += 2) {
    accuracy.correct += (*all)[i];
    accuracy.total += (*all)[i + 1];
  }
  return accuracy;
}

template <class T>
std::uint64_t Trainer<T>::weights_hash() {
  return fnv_hash(std::as_bytes(net_.running_statistics()), fnv_hash(std::as_bytes(net_.parameters())));
}

template <class T>
Result<std::vector<std::uint64_t>> Trainer<T>::gather_hashes() {
  const std::uint64_t mine[] = {weights_hash()};
  auto all = communicator_.all_gather(mine);
  if (!all) return of(all.error(), "the weights' hashes");
  return all;
}

template class Trainer<float>;
template class Trainer<double>;

}  // namespace ddp::train
