#pragma once

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/data/hash.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/model.h"
#include "apps/train/options/options.h"
#include "apps/train/schedule/schedule.h"
#include "apps/train/training/run_output.h"
#include "base/result.h"

namespace ddp::train {

/// The result of one step; loss and norm are equal on all ranks (of a node, with --sync-every-inter).
struct StepReport {
  int epoch = 0;            ///< from 0
  int step = 0;             ///< in this epoch, from 1
  int steps = 0;            ///< in this epoch
  std::uint64_t total = 0;  ///< steps since the beginning of the training, including this one
  double loss = 0;          ///< mean over the ranks' batches
  double lr = 0;
  double norm = 0;         ///< of the gradient, with --clip-norm
  bool dropped = false;    ///< the gradient was not finite: nothing changed
  bool last = false;       ///< the nodes' average after this step failed: no step can follow
  std::size_t images = 0;  ///< of all ranks in this step
  StepTimes times{};
};

struct Accuracy {
  std::uint64_t correct = 0;
  std::uint64_t total = 0;
  double percent() const { return 100.0 * static_cast<double>(correct) / static_cast<double>(total); }
};

/// Receives the activity of this rank: the number of completed steps, the present phase (a static string),
/// the loss of the last step, a nan before the first, and StepProfile::waited(). It is called at every change
/// and at every batch, so it must be cheap.
using OnPhase = std::function<void(std::uint64_t step, const char* phase, double loss, double waited)>;

/// The communicators of this rank. `node` and `between` (the ranks with the same place on the other nodes)
/// are set if nodes are averaged only every few steps, else null.
struct Communicators {
  Communicator* world = nullptr;
  Communicator* node = nullptr;
  Communicator* between = nullptr;
  /// Descriptor that ends every wait when it is readable, or -1.
  int interrupt = -1;
  std::uint32_t attempt = 0;  ///< attempt of the job
};

/// One step's gradient over micro-batches and ranks. Buckets are sent as soon as backward has completed them,
/// in the last micro-batch only. The next steps are: mean, test for nan and infinity, clip by value, clip by
/// norm. The test needs no message unless --zero: a nan of one rank is in every rank's sum.
///
///   for each micro-batch: model.forward(); model.backward(…, [](begin) { sync.ready(begin); });
///                         sync.end_of_micro_batch();
///   sync.finish();
template <class T>
class GradientSync {
 public:
  /// All arguments must outlive this object.
  GradientSync(const TrainOptions& options, Model<T>& model, Communicator& communicator)
      : options_(options),
        model_(model),
        communicator_(communicator),
        buckets_(plan_buckets(model.parameter_tensors(), 1, sizeof(T), bytes(options.first_bucket_mb),
                              bytes(options.bucket_cap_mb))) {}

  void begin_step(int micro_batches) {
    micro_batches_ = micro_batches;
    micro_batch_ = 0;
    next_bucket_ = 0;
    started_.clear();
    failed_ = Result<>();
  }

  /// The gradients from `begin` on are complete. finish() returns errors of this call.
  void ready(std::size_t begin) {
    // With --sync-bn, backward itself communicates, and no other message may be sent while sums are under
    // way.
    if (options_.sync_bn || options_.zero || micro_batch_ + 1 < micro_batches_) return;
    start_buckets(begin);
    if (failed_) failed_ = communicator_.progress();
  }

  void end_of_micro_batch() {
    ++micro_batch_;
    if (micro_batch_ == micro_batches_) return;
    const auto gradients = model_.gradients_and_loss();
    if (earlier_.size() == 0) earlier_ = AlignedBuffer<T>(gradients.size());
    if (micro_batch_ == 1) {
      std::copy(gradients.begin(), gradients.end(), earlier_.data());
    } else {
      kernels::add<T>(earlier_.span(), gradients);
    }
  }

  /// Waits for all sums. The model's gradients() are then ready for the update: all of them, or with
  /// --zero only own_part().
  Result<ReducedGradient> finish() {
    DDP_TRY(failed_);
    return options_.zero ? finish_sharded() : finish_whole();
  }

  /// Range of the padded flat vectors, in elements; everything without --zero.
  GradientBucket own_part() const {
    if (!options_.zero) return {0, model_.parameter_count()};
    const std::size_t world = static_cast<std::size_t>(communicator_.world_size());
    const std::size_t size = (model_.parameter_count() + world - 1) / world;
    return {size * static_cast<std::size_t>(communicator_.rank()),
            size * static_cast<std::size_t>(communicator_.rank() + 1)};
  }

  /// Returns the gradients of own_part() after finish().
  std::span<const T> own_gradients() { return own_gradients_; }
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 private:
  static std::size_t bytes(double mib) { return static_cast<std::size_t>(mib * 1024 * 1024); }
  void start_buckets(std::size_t begin) {
    for (; failed_ && next_bucket_ < buckets_.size() && buckets_[next_bucket_].begin >= begin;
         ++next_bucket_) {
      const GradientBucket& bucket = buckets_[next_bucket_];
      add_earlier(bucket);
      const auto handle = communicator_.start_all_reduce(
          model_.gradients_and_loss().subspan(bucket.begin, bucket.end - bucket.begin));
      if (handle) {
        started_.push_back(*handle);
      } else {
        failed_ = handle.error();
      }
    }
  }

  void add_earlier(const GradientBucket& range) {
    if (micro_batches_ == 1) return;
    const std::size_t size = range.end - range.begin;
    kernels::add<T>(model_.gradients_and_loss().subspan(range.begin, size),
                    earlier_.span().subspan(range.begin, size));
  }

  Result<ReducedGradient> finish_whole() {
    start_buckets(0);  // buckets that were not sent during backward
    DDP_TRY(failed_);
    for (const auto handle : started_)
      DDP_TRY(communicator_.wait(handle));
    const T share = T(1) / static_cast<T>(communicator_.world_size() * micro_batches_);
    ReducedGradient reduced;
    reduced.finite = kernels::average<T>(model_.gradients_and_loss(), share);
    reduced.loss = static_cast<double>(model_.gradients_and_loss().back());
    if (!reduced.finite) return reduced;
    const auto gradients = model_.gradients();
    own_gradients_ = gradients;
    if (options_.update.clip_value > 0)
      kernels::clip_value<T>(gradients, static_cast<T>(options_.update.clip_value));
    if (options_.update.clip_norm > 0) clip_norm(gradients, reduced, kernels::squared_norm<T>(gradients));
    return reduced;
  }

  Result<ReducedGradient> finish_sharded() {
    const std::size_t world = static_cast<std::size_t>(communicator_.world_size());
    add_earlier({0, model_.gradients_and_loss().size()});
    const double loss = static_cast<double>(model_.gradients_and_loss().back());
    const std::span<T> padded = model_.padded_gradients(world);
    DDP_TRY(communicator_.reduce_scatter_sum(padded));

    const GradientBucket part = own_part();
    const auto mine = padded.subspan(part.begin, part.end - part.begin);
    own_gradients_ = mine;
    const bool finite =
        kernels::average<T>(mine, T(1) / static_cast<T>(communicator_.world_size() * micro_batches_));
    if (options_.update.clip_value > 0)
      kernels::clip_value<T>(mine, static_cast<T>(options_.update.clip_value));
    const double squared = options_.update.clip_norm > 0 ? kernels::squared_norm<T>(mine) : 0;
    // No rank has seen the whole sum here, so the ranks exchange what decides.
    struct PartOfRank {
      double loss, squared;
      std::uint64_t finite;
    };
    const auto all = DDP_TRY(gather_values(communicator_, PartOfRank{loss, squared, finite}));
    ReducedGradient reduced;
    double total = 0;
    for (const PartOfRank& one : all) {
      reduced.loss += one.loss;
      total += one.squared;
      reduced.finite = reduced.finite && one.finite != 0;
    }
    reduced.loss /= static_cast<double>(communicator_.world_size()) * micro_batches_;
    reduced.finite = reduced.finite && std::isfinite(reduced.loss);
    if (reduced.finite && options_.update.clip_norm > 0) clip_norm(mine, reduced, total);
    return reduced;
  }

  void clip_norm(std::span<T> gradients, ReducedGradient& reduced, double squared) const {
    reduced.norm = std::sqrt(squared);
    // The formula of torch.nn.utils.clip_grad_norm_.
    const double factor = options_.update.clip_norm / (reduced.norm + 1e-6);
    if (factor < 1) kernels::average<T>(gradients, static_cast<T>(factor));
  }

  const TrainOptions& options_;
  Model<T>& model_;
  Communicator& communicator_;
  std::vector<GradientBucket> buckets_;
  std::size_t next_bucket_ = 0;
  std::vector<Communicator::Handle> started_;
  Result<> failed_;
  int micro_batches_ = 1, micro_batch_ = 0;
  std::span<const T> own_gradients_;
  AlignedBuffer<T> earlier_;  ///< sum over the micro-batches before this one
};

/// Data-parallel training of one model on one rank. Every rank makes the same calls in the same order.
/// Between calls all ranks hold equal weights: they begin equal, and every update comes from the same reduced
/// gradient. Errors of the communicator name the step in which they happened.
///
/// If the model has device_steps() and the GPUs can run the all-reduce, whole steps run on the GPU. The
/// host's weights, statistics and optimizer are then stale after a step, and are fetched on demand. A GPU
/// that fails in such a fetch causes a std::runtime_error.
template <class T>
class Trainer {
 public:
  /// Receives every completed step. False: no more steps.
  using OnStep = std::function<Result<bool>(const StepReport&)>;

  /// All arguments must outlive the trainer; nothing is done before attach().
  Trainer(const TrainOptions& options, Model<T>& model, const DataSplit& data)
      : options_(options),
        model_(model),
        data_(data),
        profile_(!options.profile.empty()),
        test_images_(static_cast<std::size_t>(options.batch_size) * image_size(model.image_border())),
        test_labels_(static_cast<std::size_t>(options.batch_size)) {
    if (options.sync_bn)
      model_.share_statistics([this](std::span<const double> mine) { return gather_numbers(mine); });
    profile_.watch(
        [this](Phase phase) { report_phase(kPhaseNames[static_cast<std::size_t>(phase)].data()); });
  }

  Trainer(const TrainOptions& options, Communicators communicators, Model<T>& model, const DataSplit& data)
      : Trainer(options, model, data) {
    attach(communicators);
  }

  /// Switches to new communicators; weights and optimizer state stay. With ZeRO only one call is allowed.
  void attach(Communicators communicators) {
    communicators_ = communicators;
    gather_error_.reset();
    sync_.emplace(options_, model_, sum_group());
    if (!optimizer_) optimizer_.emplace(options_.update, own_part().end - own_part().begin);
  }

  /// Those of the last attach(); none behind detach().
  const Communicators& communicators() const { return communicators_; }
  /// The ranks that sum the gradients of each step.
  Communicator& sum_group() const {
    return communicators_.node ? *communicators_.node : *communicators_.world;
  }

  /// Leaves the ranks, possibly in the middle of a step. A step without all of its sums is undone, and the
  /// communicators are released.
  void detach() {
    if (std::exchange(attached_to_device_, false)) {
      must_work(model_.device_steps()->drop());
      model_.device_steps()->detach();
    }
    if (std::exchange(in_step_, false))
      std::ranges::copy(running_before_, model_.running_statistics().begin());
    model_.take_back_gradients();
    sync_.reset();
    communicators_ = {};
  }

  void set_phase_handler(OnPhase on_phase) { on_phase_ = std::move(on_phase); }
  /// Reports a phase that is not a part of a step; a step's phases are reported automatically.
  void report_phase(const char* phase) const {
    if (on_phase_) on_phase_(position_.step, phase, loss_, profile_.waited());
  }

  /// Opens this rank's file of --sample-log: one for each attempt.
  Result<> open_sample_log() {
    if (options_.sample_log.empty()) return {};
    std::string name = "/rank-" + std::to_string(communicators_.world->rank());
    if (communicators_.attempt > 0) name += ".attempt-" + std::to_string(communicators_.attempt);
    auto opened = sample_log_.open("--sample-log", options_.sample_log + name);
    if (opened || (opened.error().sys != ENOENT && opened.error().sys != ENOTDIR)) return opened;
    return usage_error("--sample-log ", options_.sample_log,
                       ": not a directory; create it on the node of each rank");
  }

  /// Sends rank 0's weights to all ranks: a rank of another build could have drawn other weights.
  Result<> share_weights() {
    fetch();
    for (const auto bytes :
         {std::as_writable_bytes(model_.parameters()), std::as_writable_bytes(model_.running_statistics()),
          std::as_writable_bytes(std::span(&model_.batches(), 1))})
      DDP_TRY(of(communicators_.world->broadcast(bytes, 0), "the initial weights"));
    return {};
  }

  /// Trains from position() to the end of its epoch on this rank's part of the training images. kUsage when
  /// the gradients stop being finite. Running statistics differ between ranks afterwards.
  Result<> train_epoch(const OnStep& on_step) {
    const auto complete = DDP_TRY(train_batches(on_step));
    if (!complete) return {};
    ++position_.epoch;
    position_.segment_begin = position_.segment_step = 0;
    return average_nodes();
  }

  /// kUsage when at least the last `limit` steps were dropped; nodes may give different results.
  Result<> check_dropped(int limit) const {
    if (dropped_in_a_row_ < limit) return {};
    return usage_error("the gradients of ", dropped_in_a_row_, " steps in a row, up to step ", position_.step,
                       ", are not finite: training has diverged; try a smaller --lr");
  }

  /// With --sync-every-inter: averages the nodes, each weighted by its number of ranks. Does nothing if no
  /// step was made since the last average, for another average could round.
  Result<> average_nodes() {
    Communicator* between = communicators_.between;
    if (between == nullptr || between->world_size() == 1 || averaged_step_ == position_.step) return {};
    fetch();
    DDP_TRY(of(average(*between, model_.parameters(), communicators_.node->world_size()),
               "the nodes' average after step " + std::to_string(position_.step)));
    averaged_step_ = position_.step;
    return {};
  }

  /// Every rank has seen other batches; afterwards all hold the mean of their running statistics.
  Result<> average_running_statistics() {
    const std::span<T> running = model_.running_statistics();
    if (running.empty() || communicators_.world->world_size() == 1) return {};
    fetch();
    return of(average(*communicators_.world, running, 1),
              "the running statistics after step " + std::to_string(position_.step));
  }

  /// Tests each test image once, for any number of ranks.
  Result<Accuracy> evaluate() {
    const std::size_t world = static_cast<std::size_t>(communicators_.world->world_size());
    const std::size_t rank = static_cast<std::size_t>(communicators_.world->rank());
    const std::size_t begin = data_.test.size() * rank / world;
    const std::size_t end = data_.test.size() * (rank + 1) / world;

    Accuracy mine{0, end - begin};
    std::vector<std::uint32_t> samples;
    for (std::size_t at = begin; at < end; at += samples.size()) {
      report_phase("test");
      if (is_revoked(communicators_.interrupt)) return revoked_error();
      samples.resize(std::min<std::size_t>(end - at, static_cast<std::size_t>(options_.batch_size)));
      std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(at));
      const auto labels = std::span(test_labels_).first(samples.size());
      fill_batch<T>(data_.test, samples, model_.image_border(), test_images_.data(), labels);
      mine.correct += static_cast<std::uint64_t>(model_.evaluate(test_images_.data(), labels).correct);
    }
    const auto all = DDP_TRY(of(gather_values(*communicators_.world, mine),
                                "the test results after step " + std::to_string(position_.step)));
    Accuracy accuracy;
    for (const Accuracy& one : all) {
      accuracy.correct += one.correct;
      accuracy.total += one.total;
    }
    return accuracy;
  }

  /// Hashes parameters and running statistics; equal bits give equal numbers.
  std::uint64_t weights_hash() {
    fetch();
    return fnv_hash(std::as_bytes(model_.running_statistics()), fnv_hash(std::as_bytes(model_.parameters())));
  }

  /// Gives checkpoints access to the model.
  Model<T>& model() {
    fetch();
    return model_;
  }
  Optimizer<T>& optimizer() {
    fetch();
    return *optimizer_;
  }
  GradientBucket own_part() const { return sync_->own_part(); }
  TrainingPosition& position() { return position_; }
  const TrainingPosition& position() const { return position_; }
  int& dropped_in_a_row() { return dropped_in_a_row_; }
  /// For a training that was resumed within the warm-up of another --warmup-steps, but after that of the
  /// present value. The cosine begins where it would have begun.
  void set_warmed_up() {
    const std::uint64_t warmup = static_cast<std::uint64_t>(options_.lr.warmup_steps);
    if (warmup != 0 && position_.warmed_up == 0 && position_.step >= warmup)
      position_.warmed_up = progress(0) * static_cast<double>(warmup) / static_cast<double>(position_.step);
  }
  /// The nodes' weights are equal after the present step.
  void are_averaged() { averaged_step_ = position_.step; }
  const StepProfile& profile() const { return profile_; }

 private:
  static constexpr int kMaxDroppedInARow = 5;

  static std::size_t image_size(int border) {
    const std::size_t side = static_cast<std::size_t>(kImageSide + 2 * border);
    return side * side;
  }
  /// False: `on_step` stopped the training.
  Result<bool> train_batches(const OnStep& on_step) {
    std::vector<std::uint32_t> order;
    DDP_TRY(begin_epoch_order(order));
    if (order.empty()) return true;
    const auto make_steps = [&](const auto& steps_left, const auto& step) -> Result<bool> {
      while (steps_left() != 0) {
        StepReport report = DDP_TRY(step());
        const Result<> averaged = average_nodes_when_due();
        report.times = profile_.end_step();
        report.last = !averaged;
        const auto go_on = report_step(report, steps_left(), on_step);
        if (!averaged) return averaged.error();
        if (!go_on || !*go_on) return go_on;
      }
      return true;
    };
    if (has_device_steps()) {
      const auto epoch = DDP_TRY(begin_device_epoch(std::move(order)));
      DeviceEpoch<T>& rest = *epoch;
      return make_steps([&] { return rest.steps_left(); }, [&] { return device_step(rest); });
    }
    fetch();
    BatchLoader<T> loader(data_.training, std::move(order), static_cast<std::size_t>(options_.batch_size),
                          model_.image_border());
    const std::size_t group = static_cast<std::size_t>(options_.accumulate);
    std::size_t batches = loader.batches();
    return make_steps([&] { return (batches + group - 1) / group; },
                      [&] {
                        const std::size_t now = std::min(group, batches);
                        batches -= now;
                        return train_step(loader, static_cast<int>(now));
                      });
  }

  /// Reports a completed step. False: no more steps.
  Result<bool> report_step(StepReport& report, std::size_t steps_left, const OnStep& on_step) {
    DDP_TRY(check_dropped(kMaxDroppedInARow));
    report.total = position_.step;
    report.epoch = static_cast<int>(position_.epoch);
    report.step = static_cast<int>(position_.segment_step);
    report.steps = static_cast<int>(position_.segment_step + steps_left);
    report.images *= static_cast<std::size_t>(communicators_.world->world_size());
    return on_step(report);
  }

  Result<StepReport> train_step(BatchLoader<T>& loader, int micro_batches) {
    StepReport report;
    report.lr = learning_rate();
    const std::uint64_t number = position_.step + 1;
    const auto running = model_.running_statistics();
    running_before_.assign(running.begin(), running.end());
    in_step_ = true;
    profile_.begin_step(number);
    const std::string name = "step " + std::to_string(number);
    const auto reduced = DDP_TRY(of(reduced_gradient(loader, micro_batches, report), name));
    DDP_TRY(of(update(reduced, micro_batches, report.lr), name));
    report.loss = loss_ = reduced.loss;
    report.norm = reduced.norm;
    report.dropped = !reduced.finite;
    return report;
  }

  bool has_device_steps() const {
    if (model_.device_steps() == nullptr || options_.zero) return false;
    if (options_.accumulate > DeviceSteps<T>::kMaxBatches) return false;
    return sum_group().world_size() == 1 || sum_group().has_device_operations();
  }

  Result<std::unique_ptr<DeviceEpoch<T>>> begin_device_epoch(std::vector<std::uint32_t> order) {
    DeviceSteps<T>& device = *model_.device_steps();
    if (!attached_to_device_) {
      DeviceStepSettings settings;
      settings.update = options_.update;
      settings.ranks = sum_group().world_size() == 1 ? nullptr : &sum_group();
      settings.buckets = sync_->buckets();
      settings.batch = options_.batch_size;
      settings.batches = options_.accumulate;
      settings.undo = options_.rejoin;
      settings.timed = !options_.profile.empty();
      DDP_TRY(device.attach(settings));
      attached_to_device_ = true;
    }
    // With one step in flight, a lost step can be undone, and a step can be measured by itself.
    const bool alone = options_.rejoin || !options_.profile.empty();
    return DeviceEpoch<T>::begin(device, data_.training, std::move(order),
                                 static_cast<std::size_t>(options_.batch_size),
                                 static_cast<std::size_t>(options_.accumulate), model_.image_border(),
                                 alone ? 1 : DeviceSteps<T>::kMaxInFlight);
  }

  Result<StepReport> device_step(DeviceEpoch<T>& epoch) {
    const std::string name = "step " + std::to_string(position_.step + 1);
    if (is_revoked(communicators_.interrupt)) return revoked_error();
    profile_.begin_step(position_.step + 1);
    profile_.enter(Phase::kData);
    if (!on_device_) {
      DDP_TRY(model_.device_steps()->move_state_to_gpu(*optimizer_));
      on_device_ = true;
    }
    const auto plan = [this](std::uint64_t ahead, std::span<const std::uint32_t> samples) {
      const std::uint64_t step = position_.step + ahead + 1;
      const std::size_t most = static_cast<std::size_t>(options_.batch_size);
      for (auto rest = samples; !rest.empty(); rest = rest.subspan(std::min(most, rest.size())))
        log_samples(rest.first(std::min(most, rest.size())), step);
      const bool injected = options_.inject_nan && options_.inject_nan->step == step;  // on any rank
      return DeviceStep{.lr = learning_rate(ahead), .as_graph = !injected, .inject_nan = injects_nan(step)};
    };
    DDP_TRY(of(epoch.launch_ahead(steps_until_read(), plan), name));
    profile_.enter(Phase::kForward);
    const auto outcome = DDP_TRY(of(epoch.finish(), name));
    if (!options_.profile.empty()) {  // else a graph has no phases, and all of it is the forward pass
      const auto [forward, backward, sums, update] = DDP_TRY(of(model_.device_steps()->last_times(), name));
      const std::pair<Phase, double> parts[] = {{Phase::kForward, forward},
                                                {Phase::kBackward, backward},
                                                {Phase::kCommunication, sums},
                                                {Phase::kOptimizer, update}};
      profile_.divide(parts);
    }
    StepReport report;
    report.lr = learning_rate();
    report.loss = loss_ = outcome.loss;
    report.norm = outcome.norm;
    report.dropped = !outcome.finite;
    report.images = epoch.images();
    count_step(outcome.finite, epoch.batches());
    return report;
  }

  /// Returns how many steps may run before the state is read, including the next one.
  std::uint64_t steps_until_read() const {
    std::uint64_t steps = std::numeric_limits<std::uint64_t>::max();
    const auto every = [&](std::uint64_t count) {
      if (count > 1) steps = std::min(steps, count - position_.step % count);
    };
    every(options_.checkpoint_every);
    every(static_cast<std::uint64_t>(options_.sync_every_inter));
    if (options_.checkpoint_every == 1) steps = 1;
    if (options_.max_steps > position_.step) steps = std::min(steps, options_.max_steps - position_.step);
    return steps;
  }

  bool injects_nan(std::uint64_t step) const {
    const auto& inject = options_.inject_nan;
    return inject && inject->step == step && inject->rank == communicators_.world->rank();
  }

  /// Copies the training's state from the GPU to the host, which continues with it.
  void fetch() {
    if (std::exchange(on_device_, false)) must_work(model_.device_steps()->move_state_to_host(*optimizer_));
  }

  Result<ReducedGradient> reduced_gradient(BatchLoader<T>& loader, int micro_batches, StepReport& report) {
    const std::uint64_t number = position_.step + 1;
    sync_->begin_step(micro_batches);
    for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      profile_.enter(Phase::kData);
      if (is_revoked(communicators_.interrupt)) return revoked_error();
      const auto& batch = loader.next();
      log_samples(batch.samples, number);
      report.images += batch.samples.size();
      profile_.enter(Phase::kForward);
      model_.forward(batch.images.data(), batch.labels);
      profile_.enter(Phase::kBackward);
      model_.backward(batch.images.data(), static_cast<int>(batch.labels.size()), [&](std::size_t begin) {
        if (injects_nan(number)) model_.gradients()[begin] = std::numeric_limits<T>::quiet_NaN();
        profile_.enter(Phase::kCommunication);  // shared memory makes a node's sums at once
        sync_->ready(begin);
        profile_.enter(Phase::kBackward);
      });
      sync_->end_of_micro_batch();
    }
    profile_.enter(Phase::kCommunication);
    if (gather_error_) return *gather_error_;
    return sync_->finish();
  }

  /// Averages over all ranks of the world; each rank of `over` counts `weight` times. A failed sum leaves
  /// undefined values, so a rank that may rejoin restores its own.
  Result<> average(Communicator& over, std::span<T> values, int weight) {
    if (options_.rejoin) kept_.assign(values.begin(), values.end());
    if (weight != 1) kernels::average<T>(values, static_cast<T>(weight));
    if (auto done = over.all_reduce_sum(values); !done) {
      if (options_.rejoin) std::ranges::copy(kept_, values.begin());
      return done;
    }
    kernels::average<T>(values, T(1) / static_cast<T>(communicators_.world->world_size()));
    return {};
  }

  Result<> update(const ReducedGradient& reduced, int batches, double lr) {
    in_step_ = false;
    count_step(reduced.finite, batches);
    if (!reduced.finite) {
      // The running statistics may have seen the same nan.
      std::ranges::copy(running_before_, model_.running_statistics().begin());
    } else {
      profile_.enter(Phase::kOptimizer);
      const std::size_t parts =
          options_.zero ? static_cast<std::size_t>(communicators_.world->world_size()) : 1;
      const GradientBucket part = own_part();
      const auto parameters = model_.padded_parameters(parts);
      optimizer_->step(parameters.subspan(part.begin, part.end - part.begin), sync_->own_gradients(), lr);
      if (options_.zero) {
        profile_.enter(Phase::kCommunication);
        DDP_TRY(communicators_.world->all_gather_parts(std::as_writable_bytes(parameters)));
      }
    }
    return {};
  }

  /// `batches`: how many batches this rank's running statistics have seen in the step.
  void count_step(bool finite, int batches) {
    ++position_.step;
    ++position_.segment_step;
    dropped_in_a_row_ = finite ? 0 : dropped_in_a_row_ + 1;
    if (finite) model_.batches() += batches;
    if (position_.step == static_cast<std::uint64_t>(options_.lr.warmup_steps))
      position_.warmed_up = progress(0);
  }

  Result<> average_nodes_when_due() {
    if (options_.sync_every_inter == 1 ||
        position_.step % static_cast<std::uint64_t>(options_.sync_every_inter) != 0)
      return {};
    profile_.enter(Phase::kCommunication);
    return average_nodes();
  }

  Result<> begin_epoch_order(std::vector<std::uint32_t>& order) {
    SamplerConfig sampler;
    sampler.samples = data_.training.size();
    sampler.world_size = communicators_.world->world_size();
    sampler.rank = communicators_.world->rank();
    sampler.seed = options_.seed;
    sampler.begin = position_.segment_begin;
    auto all = DDP_TRY(sample_order(sampler, position_.epoch));
    const std::size_t done = static_cast<std::size_t>(position_.segment_step) * options_.accumulate *
                             static_cast<std::size_t>(options_.batch_size);
    order.assign(all.begin() + static_cast<std::ptrdiff_t>(std::min(done, all.size())), all.end());
    return {};
  }

  std::vector<double> gather_numbers(std::span<const double> mine) {
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

  /// Returns the fraction of the training that is over after `ahead` more steps of this epoch.
  double progress(std::uint64_t ahead) const {
    const double samples = static_cast<double>(data_.training.size());
    const double used = static_cast<double>(position_.segment_begin) +
                        static_cast<double>(position_.segment_step + ahead) * options_.accumulate *
                            options_.batch_size * communicators_.world->world_size();
    return (static_cast<double>(position_.epoch) + std::min(used / samples, 1.0)) / options_.epochs;
  }

  double learning_rate(std::uint64_t ahead = 0) const {
    const std::uint64_t step = position_.step + ahead;
    const std::uint64_t warmup = static_cast<std::uint64_t>(options_.lr.warmup_steps);
    const bool ends_ahead = position_.step < warmup && warmup <= step;
    return options_.lr.rate(static_cast<std::int64_t>(step), progress(ahead),
                            ends_ahead ? progress(warmup - position_.step) : position_.warmed_up);
  }

  void log_samples(std::span<const std::uint32_t> samples, std::uint64_t step) {
    if (!sample_log_.is_open()) return;
    std::string line = concat(position_.epoch, " ", step, ":");
    for (const std::uint32_t sample : samples)
      line += " " + std::to_string(sample);
    sample_log_.append(line + "\n");
  }

  const TrainOptions& options_;
  Communicators communicators_;
  Model<T>& model_;
  const DataSplit& data_;
  std::optional<GradientSync<T>> sync_;
  std::optional<Optimizer<T>> optimizer_;
  bool attached_to_device_ = false;
  bool on_device_ = false;  ///< the state is on the GPU; the host's copy is stale
  StepProfile profile_;
  TrainingPosition position_;
  std::optional<std::uint64_t> averaged_step_;  ///< step after which the nodes were last averaged
  int dropped_in_a_row_ = 0;
  std::optional<Error> gather_error_;
  std::vector<T> running_before_;  ///< running statistics before this step
  bool in_step_ = false;           ///< true: in a step whose update has not begun
  std::vector<T> kept_;            ///< values before a sum, which an error may leave half changed
  OnPhase on_phase_;
  double loss_ = std::numeric_limits<double>::quiet_NaN();  ///< of the last step
  AlignedBuffer<T> test_images_;
  std::vector<std::uint8_t> test_labels_;
  LineFile sample_log_;
};

}  // namespace ddp::train
