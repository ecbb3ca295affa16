#include "apps/train/trainer.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "apps/train/fnv_hash.h"
#include "apps/train/image_size.h"
#include "apps/train/interrupt.h"
#include "apps/train/kernels/gradient_ops.h"
#include "apps/train/sampler.h"

namespace ddp::train {

namespace {

constexpr int kMaxDroppedInARow = 5;

/// Completes what a communicator's error ends in: "… during all-reduce" + " of step 17".
Error of(Error error, const std::string& what) {
  error.text += " of " + what;
  return error;
}

GradientSyncSettings sync_settings(const Options& options) {
  GradientSyncSettings settings;
  settings.bucket_bytes = static_cast<std::size_t>(options.bucket_cap_mb * 1024 * 1024);
  settings.first_bucket_bytes = static_cast<std::size_t>(options.first_bucket_mb * 1024 * 1024);
  settings.sharded = options.zero;
  settings.overlap = !options.sync_bn;  // nothing else may be sent while sums are under way
  settings.clip_value = options.clip_value;
  settings.clip_norm = options.clip_norm;
  return settings;
}

std::size_t image_size(int border) {
  const std::size_t side = static_cast<std::size_t>(kImageSide + 2 * border);
  return side * side;
}

}  // namespace

template <class T>
Trainer<T>::Trainer(const Options& options, Model<T>& model, const DataSplit& data)
    : options_(options),
      model_(model),
      data_(data),
      profile_(!options.profile.empty()),
      test_images_(static_cast<std::size_t>(options.batch_size) * image_size(model.image_border())),
      test_labels_(static_cast<std::size_t>(options.batch_size)) {
  if (options.sync_bn)
    model_.share_statistics([this](std::span<const double> mine) { return gather_numbers(mine); });
  profile_.watch([this](Phase phase) { tell_phase(kPhaseNames[static_cast<std::size_t>(phase)].data()); });
}

template <class T>
void Trainer<T>::attach(Communicators communicators) {
  communicators_ = communicators;
  gather_error_.reset();
  sync_.emplace(sync_settings(options_), model_,
                communicators.node ? *communicators.node : *communicators.world);
  if (!optimizer_) optimizer_.emplace(options_.optimizer, own_part().end - own_part().begin);
}

template <class T>
void Trainer<T>::let_go() {
  if (std::exchange(in_step_, false)) std::ranges::copy(running_before_, model_.running_statistics().begin());
  model_.take_back_gradients();
  sync_.reset();
  communicators_ = {};
}

template <class T>
Result<> Trainer<T>::open_sample_log() {
  if (options_.sample_log.empty()) return {};
  std::string name = "/rank-" + std::to_string(communicators_.world->rank());
  if (communicators_.attempt > 0) name += ".attempt-" + std::to_string(communicators_.attempt);
  auto opened = sample_log_.open(options_.sample_log + name);
  if (opened) return {};
  const int why = opened.error().sys;
  return why == ENOENT || why == ENOTDIR
             ? Error{ErrorCode::kUsage,
                     "cannot write into --sample-log " + options_.sample_log + "; is it a directory?"}
             : within("--sample-log", opened.error());
}

template <class T>
std::vector<double> Trainer<T>::gather_numbers(std::span<const double> mine) {
  if (gather_error_) return {};
  std::vector<std::uint64_t> words(mine.size());
  std::ranges::transform(mine, words.begin(), [](double d) { return std::bit_cast<std::uint64_t>(d); });
  const Phase before = profile_.phase();  // forward or backward
  profile_.enter(Phase::kCommunication);
  const auto all = communicators_.world->all_gather(words);
  profile_.enter(before);
  if (!all) {
    gather_error_ = all.error();
    return {};
  }
  std::vector<double> numbers(all->size());
  std::ranges::transform(*all, numbers.begin(), [](std::uint64_t w) { return std::bit_cast<double>(w); });
  return numbers;
}

template <class T>
Result<> Trainer<T>::share_weights() {
  auto done = communicators_.world->broadcast(std::as_writable_bytes(model_.parameters()), 0);
  if (done) done = communicators_.world->broadcast(std::as_writable_bytes(model_.running_statistics()), 0);
  if (!done) return of(done.error(), "the initial weights");
  return {};
}

template <class T>
double Trainer<T>::learning_rate() const {
  const double samples = static_cast<double>(data_.training.size());
  const double used = static_cast<double>(position_.segment_begin) +
                      static_cast<double>(position_.segment_step) * options_.accumulate *
                          options_.batch_size * communicators_.world->world_size();
  const double progress =
      (static_cast<double>(position_.epoch) + std::min(used / samples, 1.0)) / options_.epochs;
  return options_.lr.rate(static_cast<std::int64_t>(position_.step), progress);
}

template <class T>
void Trainer<T>::log_samples(std::span<const std::uint32_t> samples) {
  if (!sample_log_.is_open()) return;
  std::string line = std::to_string(position_.epoch) + " " + std::to_string(position_.step + 1) + ":";
  for (const std::uint32_t sample : samples)
    line += " " + std::to_string(sample);
  sample_log_.append(line + "\n");
}

template <class T>
Result<ReducedGradient> Trainer<T>::reduced_gradient(BatchLoader<T>& loader, int micro_batches,
                                                     StepReport& report) {
  const std::uint64_t number = position_.step + 1;
  sync_->begin_step(micro_batches);
  for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    profile_.enter(Phase::kData);
    if (is_revoked(communicators_.interrupt)) return revoked_error();
    const auto& batch = loader.next();
    log_samples(batch.samples);
    report.images += batch.samples.size();
    profile_.enter(Phase::kForward);
    model_.forward(batch.images.data(), batch.labels);
    profile_.enter(Phase::kBackward);
    model_.backward(batch.images.data(), static_cast<int>(batch.labels.size()), [&](std::size_t begin) {
      const auto& plant = options_.plant_nan;
      if (plant && plant->step == number && plant->rank == communicators_.world->rank())
        model_.gradients()[begin] = std::numeric_limits<T>::quiet_NaN();
      profile_.enter(Phase::kCommunication);  // a node's sums are made at once, by shared memory
      sync_->ready(begin);
      profile_.enter(Phase::kBackward);
    });
    sync_->end_of_micro_batch();
  }
  profile_.enter(Phase::kCommunication);
  if (gather_error_) return *gather_error_;
  return sync_->finish();
}

template <class T>
Result<StepReport> Trainer<T>::train_step(BatchLoader<T>& loader, int micro_batches) {
  StepReport report;
  report.lr = learning_rate();
  const std::uint64_t number = position_.step + 1;
  const auto running = model_.running_statistics();
  running_before_.assign(running.begin(), running.end());
  in_step_ = true;
  profile_.begin_step(number);
  const auto reduced = reduced_gradient(loader, micro_batches, report);
  if (!reduced) return of(reduced.error(), "step " + std::to_string(number));
  if (auto done = update(*reduced, report.lr); !done)
    return of(done.error(), "step " + std::to_string(number));
  report.times = profile_.end_step();
  report.loss = reduced->loss;
  report.norm = reduced->norm;
  report.dropped = !reduced->finite;
  report.total = number;
  report.epoch = static_cast<int>(position_.epoch);
  return report;
}

template <class T>
Result<> Trainer<T>::update(const ReducedGradient& reduced, double lr) {
  in_step_ = false;
  ++position_.step;
  ++position_.segment_step;
  if (!reduced.finite) {
    // The running statistics may have seen the same nan.
    std::ranges::copy(running_before_, model_.running_statistics().begin());
    ++dropped_in_a_row_;
  } else {
    dropped_in_a_row_ = 0;
    profile_.enter(Phase::kOptimizer);
    const std::size_t parts =
        options_.zero ? static_cast<std::size_t>(communicators_.world->world_size()) : 1;
    const GradientBucket part = own_part();
    const auto parameters = model_.padded_parameters(parts);
    const std::size_t size = part.end - part.begin;
    optimizer_->step(parameters.subspan(part.begin, size), sync_->own_gradients(), lr);
    if (options_.zero) {
      profile_.enter(Phase::kCommunication);
      if (auto done = communicators_.world->all_gather_parts(std::as_writable_bytes(parameters)); !done)
        return done;
    }
  }
  if (options_.sync_every_inter > 1 &&
      position_.step % static_cast<std::uint64_t>(options_.sync_every_inter) == 0) {
    profile_.enter(Phase::kCommunication);
    return average_nodes();
  }
  return {};
}

template <class T>
Result<> Trainer<T>::begin_epoch_order(std::vector<std::uint32_t>& order) {
  SamplerConfig sampler;
  sampler.samples = data_.training.size();
  sampler.world_size = communicators_.world->world_size();
  sampler.rank = communicators_.world->rank();
  sampler.seed = options_.seed;
  sampler.begin = position_.segment_begin;
  auto all = sample_order(sampler, position_.epoch);
  if (!all) return all.error();
  const std::size_t done = static_cast<std::size_t>(position_.segment_step) * options_.accumulate *
                           static_cast<std::size_t>(options_.batch_size);
  order.assign(all->begin() + static_cast<std::ptrdiff_t>(std::min(done, all->size())), all->end());
  return {};
}

template <class T>
Result<> Trainer<T>::train_epoch(const OnStep& on_step) {
  std::vector<std::uint32_t> order;
  if (auto done = begin_epoch_order(order); !done) return done;
  if (!order.empty()) {
    BatchLoader<T> loader(data_.training, std::move(order), static_cast<std::size_t>(options_.batch_size),
                          model_.image_border());
    const std::size_t group = static_cast<std::size_t>(options_.accumulate);
    const int steps = static_cast<int>(position_.segment_step + (loader.batches() + group - 1) / group);
    for (std::size_t batch = 0; batch < loader.batches(); batch += group) {
      auto report = train_step(loader, static_cast<int>(std::min(group, loader.batches() - batch)));
      if (!report) return report.error();
      if (dropped_in_a_row_ == kMaxDroppedInARow) {
        return Error{ErrorCode::kUsage, "the gradients of " + std::to_string(kMaxDroppedInARow) +
                                            " steps in a row, up to step " + std::to_string(position_.step) +
                                            ", are not finite: training has diverged; try a smaller --lr"};
      }
      report->step = static_cast<int>(position_.segment_step);
      report->steps = steps;
      report->images *= static_cast<std::size_t>(communicators_.world->world_size());
      const auto go_on = on_step(*report);
      if (!go_on) return go_on.error();
      if (!*go_on) return {};
    }
  }
  ++position_.epoch;
  position_.segment_begin = position_.segment_step = 0;
  return average_nodes();
}

/// A sum that fails leaves anything, but this rank may live on with what it had.
template <class T>
Result<> Trainer<T>::average(Communicator& over, std::span<T> values) {
  if (options_.rejoin) kept_.assign(values.begin(), values.end());
  if (auto done = over.all_reduce_sum(values); !done) {
    if (options_.rejoin) std::ranges::copy(kept_, values.begin());
    return done;
  }
  kernels::average<T>(values, T(1) / static_cast<T>(over.world_size()));
  return {};
}

template <class T>
Result<> Trainer<T>::average_nodes() {
  Communicator* between = communicators_.between;
  if (between == nullptr || averaged_step_ == position_.step) return {};
  if (auto done = average(*between, model_.parameters()); !done)
    return of(done.error(), "the nodes' average after step " + std::to_string(position_.step));
  averaged_step_ = position_.step;
  return {};
}

template <class T>
Result<> Trainer<T>::average_running_statistics() {
  const std::span<T> running = model_.running_statistics();
  if (running.empty()) return {};
  if (auto done = average(*communicators_.world, running); !done)
    return of(done.error(), "the running statistics after step " + std::to_string(position_.step));
  return {};
}

template <class T>
Result<Accuracy> Trainer<T>::evaluate() {
  const std::size_t world = static_cast<std::size_t>(communicators_.world->world_size());
  const std::size_t rank = static_cast<std::size_t>(communicators_.world->rank());
  const std::size_t begin = data_.test.size() * rank / world;
  const std::size_t end = data_.test.size() * (rank + 1) / world;

  std::uint64_t mine[2] = {0, end - begin};
  std::vector<std::uint32_t> samples;
  for (std::size_t at = begin; at < end; at += samples.size()) {
    tell_phase("test");
    if (is_revoked(communicators_.interrupt)) return revoked_error();
    samples.resize(std::min<std::size_t>(end - at, static_cast<std::size_t>(options_.batch_size)));
    std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(at));
    const auto labels = std::span(test_labels_).first(samples.size());
    fill_batch<T>(data_.test, samples, model_.image_border(), test_images_.data(), labels);
    mine[0] += static_cast<std::uint64_t>(model_.evaluate(test_images_.data(), labels).correct);
  }
  const auto all = communicators_.world->all_gather(mine);
  if (!all) return of(all.error(), "the test results after step " + std::to_string(position_.step));
  Accuracy accuracy;
  for (std::size_t i = 0; i < all->size(); i += 2) {
    accuracy.correct += (*all)[i];
    accuracy.total += (*all)[i + 1];
  }
  return accuracy;
}

template <class T>
std::uint64_t Trainer<T>::weights_hash() {
  return fnv_hash(std::as_bytes(model_.running_statistics()), fnv_hash(std::as_bytes(model_.parameters())));
}

template <class T>
Result<std::vector<std::uint64_t>> Trainer<T>::gather_hashes() {
  const std::uint64_t mine[] = {weights_hash()};
  auto all = communicators_.world->all_gather(mine);
  if (!all) return of(all.error(), "the weights' hashes");
  return all;
}

template class Trainer<float>;
template class Trainer<double>;

}  // namespace ddp::train
