#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
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
/// and the loss of the last step, a nan before the first. It is called at every change and at every batch, so
/// it must be cheap.
using OnPhase = std::function<void(std::uint64_t step, const char* phase, double loss)>;

struct GradientSyncSettings {
  std::size_t bucket_bytes = 25 << 20;
  std::size_t first_bucket_bytes = 1 << 20;
  bool sharded = false;   ///< ZeRO-1: each rank gets only its part of the reduced gradient
  bool overlap = true;    ///< false: everything after backward (backward itself communicates)
  double clip_value = 0;  ///< 0: off
  double clip_norm = 0;
};

/// A step's result that all ranks know alike after the gradient was reduced.
struct ReducedGradient {
  double loss = 0;     ///< mean over micro-batches and ranks
  bool finite = true;  ///< false: the step is to be dropped
  double norm = 0;     ///< before clipping; only with clip_norm
};

/// One step's gradient over micro-batches and ranks. Buckets are sent as soon as backward has completed them,
/// in the last micro-batch only. The next steps are: mean, test for nan and infinity, clip by value, clip by
/// norm. The test needs no message unless `sharded`: a nan of one rank is in every rank's sum.
///
///   for each micro-batch: model.forward(); model.backward(…, [](begin) { sync.ready(begin); });
///                         sync.end_of_micro_batch();
///   sync.finish();
template <class T>
class GradientSync {
 public:
  /// `model` and `communicator` must outlive this object.
  GradientSync(const GradientSyncSettings& settings, Model<T>& model, Communicator& communicator);

  void begin_step(int micro_batches);
  /// The gradients from `begin` on are complete. finish() returns errors of this call.
  void ready(std::size_t begin);
  void end_of_micro_batch();
  /// Waits for all sums. The model's gradients() are then ready for the update: all of them, or with
  /// `sharded` only own_part().
  Result<ReducedGradient> finish();

  /// Range of the padded flat vectors, in elements; everything unless sharded.
  GradientBucket own_part() const;
  /// Returns the gradients of own_part() after finish().
  std::span<const T> own_gradients() { return own_gradients_; }
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 private:
  void start_buckets(std::size_t begin);
  void add_earlier(const GradientBucket& range);
  Result<ReducedGradient> finish_whole();
  Result<ReducedGradient> finish_sharded();
  void clip_norm(std::span<T> gradients, ReducedGradient& reduced, double squared) const;

  GradientSyncSettings settings_;
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
  Trainer(const TrainOptions& options, Model<T>& model, const DataSplit& data);
  Trainer(const TrainOptions& options, Communicators communicators, Model<T>& model, const DataSplit& data)
      : Trainer(options, model, data) {
    attach(communicators);
  }

  /// Switches to new communicators; weights and optimizer state stay. With ZeRO only one call is allowed.
  void attach(Communicators communicators);
  /// Leaves the ranks, possibly in the middle of a step. A step without all of its sums is undone, and the
  /// communicators are released.
  void detach();
  void set_phase_handler(OnPhase on_phase) { on_phase_ = std::move(on_phase); }
  /// Reports a phase that is not a part of a step; a step's phases are reported automatically.
  void report_phase(const char* phase) const {
    if (on_phase_) on_phase_(position_.step, phase, loss_);
  }

  /// Opens this rank's file of --sample-log: one for each attempt.
  Result<> open_sample_log();
  /// Sends rank 0's weights to all ranks: a rank of another build could have drawn other weights.
  Result<> share_weights();
  /// Trains from position() to the end of its epoch on this rank's part of the training images. kUsage when
  /// the gradients stop being finite. Running statistics differ between ranks afterwards.
  Result<> train_epoch(const OnStep& on_step);
  /// kUsage when at least the last `limit` steps were dropped; nodes may give different results.
  Result<> check_dropped(int limit) const;
  /// With --sync-every-inter: averages the nodes, each weighted by its number of ranks. Does nothing if no
  /// step was made since the last average, for another average could round.
  Result<> average_nodes();
  /// Every rank has seen other batches; afterwards all hold the mean of their running statistics.
  Result<> average_running_statistics();
  /// Tests each test image once, for any number of ranks.
  Result<Accuracy> evaluate();

  /// Hashes parameters and running statistics; equal bits give equal numbers.
  std::uint64_t weights_hash();
  /// Returns the hash of every rank, in rank order.
  Result<std::vector<std::uint64_t>> gather_hashes();

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
  Communicator& sum_group() const {
    return communicators_.node ? *communicators_.node : *communicators_.world;
  }
  Result<bool> train_batches(const OnStep& on_step);
  Result<bool> report_step(StepReport& report, std::size_t steps_left, const OnStep& on_step);
  Result<StepReport> train_step(BatchLoader<T>& loader, int micro_batches);
  bool has_device_steps() const;
  Result<std::unique_ptr<DeviceEpoch<T>>> begin_device_epoch(std::vector<std::uint32_t> order);
  Result<StepReport> device_step(DeviceEpoch<T>& epoch);
  std::uint64_t steps_until_read() const;
  bool injects_nan(std::uint64_t step) const;
  /// Copies the training's state from the GPU to the host, which continues with it.
  void fetch();
  Result<ReducedGradient> reduced_gradient(BatchLoader<T>& loader, int micro_batches, StepReport& report);
  Result<> average(Communicator& over, std::span<T> values, int weight);
  Result<> update(const ReducedGradient& reduced, int batches, double lr);
  void count_step(bool finite, int batches);
  Result<> average_nodes_when_due();
  Result<> begin_epoch_order(std::vector<std::uint32_t>& order);
  std::vector<double> gather_numbers(std::span<const double> mine);
  double progress(std::uint64_t ahead) const;
  double learning_rate(std::uint64_t ahead = 0) const;
  void log_samples(std::span<const std::uint32_t> samples, std::uint64_t step);

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
