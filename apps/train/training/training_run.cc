#include "apps/train/training/training_run.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/checkpoint/model_file.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/model/conv_net.h"
#include "apps/train/model/mlp.h"
#include "apps/train/model/model.h"
#include "apps/train/options/equal_options.h"
#include "apps/train/training/checkpoint_run.h"
#include "apps/train/training/equal_data.h"
#include "apps/train/training/profile_report.h"
#include "apps/train/training/progress.h"
#include "apps/train/training/run_output.h"
#include "apps/train/training/training_state.h"
#include "base/clock.h"
#include "base/format_text.h"
#include "rendezvous/worker_client/worker_link_client.h"

namespace ddp::train {

namespace {

using Clock = std::chrono::steady_clock;

std::string hash_text(std::uint64_t hash) {
  return format_text("%016" PRIx64, hash);
}

Result<> check_equal(const std::vector<std::uint64_t>& hashes) {
  const std::size_t best = most_frequent(hashes);
  std::string differing;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (hashes[i] != hashes[best])
      differing += " rank " + std::to_string(i) + " has " + hash_text(hashes[i]) + ",";
  }
  if (differing.empty()) return {};
  return Error{ErrorCode::kInternal, "weights differ:" + differing + " rank " + std::to_string(best) +
                                         " has " + hash_text(hashes[best])};
}

template <class T>
std::unique_ptr<Model<T>> make_model(const TrainOptions& options, ThreadPool& threads) {
  const auto& table = *kernels::find_kernels<T>(options.kernels);  // contradiction() has found it
  const bool on_gpu = options.device == DeviceKind::kGpu;
  const int batch = on_gpu ? 1 : options.batch_size;
  std::unique_ptr<Model<T>> model;
  if (options.model == ModelKind::kMlp) {
    model = std::make_unique<Mlp<T>>(options.mlp_width, options.mlp_depth, batch, threads, table);
  } else {
    model = std::make_unique<ConvNet<T>>(batch, threads, table);
  }
  if (!on_gpu) return model;
  auto there = make_device_model<T>(std::move(model), {options.mlp_width, options.mlp_depth,
                                                       options.batch_size, options.dtype == Dtype::kBfloat16,
                                                       options.matmul_precision == MatmulPrecision::kHigh});
  if (!there) throw std::runtime_error(there.error().text);  // contradiction() has found a GPU
  return std::move(*there);
}

template <class T>
class TypedTrainingRun final : public TrainingRun {
 public:
  TypedTrainingRun(const TrainOptions& options, const DataSplit& data, OnPhase on_phase)
      : options_(options),
        data_(data),
        threads_(options.threads),
        model_(make_model<T>(options, threads_)),
        trainer_(options, *model_, data),
        progress_(options),
        checkpoints_(options, trainer_) {
    trainer_.set_phase_handler(std::move(on_phase));
  }

  Result<> go(const TrainingAttempt& attempt) override {
    const bool spoke = speaks_;
    attach(attempt.communicators);
    if (auto equal = check_given(attempt.from); !equal) return equal;
    if (auto done = attempt.from ? go_on(*attempt.from, spoke) : begin(); !done) return done;
    if (attempt.on_ready) attempt.on_ready();
    if (auto done = train(); !done) return done;
    // One dropped step may be bad luck. A training that has diverged at its end writes nothing.
    if (auto few = share_first_failure(*world_, trainer_.check_dropped(2)); !few) return few;
    if (auto done = checkpoints_.finish(); !done) return done;
    if (auto done = finish(); !done) return done;
    if (!options_.profile.empty()) {
      auto done = report_profile(*world_, trainer_.profile(), options_.profile, traces_);
      if (!done) return done;
    }
    if (speaks_) {
      const Accuracy& accuracy = marks_.accuracy;
      print_out("test accuracy %.1f %% (%" PRIu64 "/%" PRIu64 ")\n", accuracy.percent(), accuracy.correct,
                accuracy.total);
    }
    // A training that lacks only its last checkpoint or its traces has given all results.
    return checkpoints_.last_outcome() ? traces_ : checkpoints_.last_outcome();
  }

  void leave_attempt() override {
    trainer_.detach();
    world_ = nullptr;
  }

  std::optional<std::uint64_t> held_step() const override {
    if (!held_) return std::nullopt;
    return trainer_.position().step;
  }

 private:
  void attach(const Communicators& communicators) {
    world_ = communicators.world;
    interrupt_ = communicators.interrupt;
    attempt_ = communicators.attempt;
    speaks_ = world_->rank() == 0;
    trainer_.attach(communicators);
    progress_.attach(world_->rank(), world_->world_size());
    checkpoints_.attach(communicators, data_);
    sums_ = communicators.node ? communicators.node : communicators.world;
  }

  Result<> check_given(std::optional<int> from) {
    const auto check_data = [&] { return check_equal_data(*world_, data_, from); };
    // A joining process with other options or data, or data of another size, leaves and ends no other rank.
    if (from) {
      if (auto equal = check_data(); !equal) return equal;
    }
    auto equal = check_equal(*world_, equal_options(options_, data_), from);
    return equal && !from ? check_data() : equal;
  }

  /// Small gradients gain nothing: their copies stay in the nearest caches anyway.
  void share_gradients() {
    constexpr std::size_t kWorthSharing = 4u << 20;
    if (model_->gradient_bytes() <= kWorthSharing) return;
    if (const auto memory = sums_->share_memory(model_->gradient_bytes()); !memory.empty())
      model_->place_gradients(memory);
  }

  Result<> begin() {
    if (!model_->products_by().empty()) progress_.say("matrix products by " + model_->products_by());
    model_->initialise(static_cast<std::uint64_t>(options_.seed));
    if (!options_.init_from.empty()) {
      const auto read = [this]() -> Result<> {  // the other ranks get the weights by broadcast
        if (!speaks_) return {};
        auto imported = import_model<T>(options_.init_from, *model_);
        if (imported || imported.error().sys == 0) return imported;
        return Error{ErrorCode::kUsage,
                     system_error(imported.error().sys, "--init-from " + options_.init_from).text +
                         "; give a safetensors file on the node of rank 0"};
      };
      auto done = share_outcome(*world_, read, options_.comm_timeout / 4, interrupt_);
      if (!done) return done;
    }
    share_gradients();
    if (auto done = open_outputs(); !done) return done;
    if (auto done = trainer_.share_weights(); !done) return done;
    if (auto done = checkpoints_.resume([this](const std::string& line) { progress_.say(line); }); !done)
      return done;
    marks_.world_size = world_->world_size();
    marks_.tested_epochs = trainer_.position().epoch;
    held_ = true;
    if (auto done = checkpoints_.prepare(); !done) return done;
    if (is_complete()) {
      progress_.say("training is already complete: it ended with step " +
                    std::to_string(trainer_.position().step));
      if (!test_due()) return test(trainer_.position().epoch - 1);
    }
    return {};
  }

  /// `spoke`: this rank was rank 0 and has written the records so far.
  Result<> go_on(int from, bool spoke) {
    share_gradients();
    if (auto done = open_outputs(); !done) return done;
    trainer_.report_phase("state");
    const std::uint64_t before = held_ && spoke ? trainer_.position().step : 0;
    auto done = share_state(options_, *world_, from, held_, data_.training.size(), trainer_, marks_);
    if (!done) return done;
    held_ = true;
    // The last step's record may be missing: another rank 0 may have died before writing it.
    if (marks_.last.total > before) progress_.step(marks_.last);
    const int ranks = world_->world_size();
    progress_.say("attempt " + std::to_string(attempt_) + ": " +
                  counted(ranks, "rank continues", "ranks continue") + " from step " +
                  std::to_string(trainer_.position().step) + " (state of rank " + std::to_string(from) + ")");
    return checkpoints_.prepare_again();
  }

  bool at_end() const { return options_.max_steps != 0 && trainer_.position().step >= options_.max_steps; }
  bool is_complete() const { return trainer_.position().epoch >= options_.epochs || at_end(); }

  /// A disk may take longer than the ranks' time limit for silence.
  Result<> open_outputs() {
    const auto open = [this]() -> Result<> {
      if (auto places = check_output_paths(); !places) return places;
      return progress_.open();
    };
    return share_first_failure(*world_, open, options_.comm_timeout / 4, interrupt_);
  }

  /// Checks at the start that the output files can be written, before hours of work.
  Result<> check_output_paths() {
    if (auto opened = trainer_.open_sample_log(); !opened) return opened;
    if (speaks_ && !options_.export_to.empty()) {
      if (auto place = check_export_path(options_.export_to); !place) return place;
    }
    if (options_.profile.empty()) return {};
    return check_output_path("--profile", profile_path(options_.profile, *world_));
  }

  Result<bool> after_step(const StepReport& report) {
    marks_.last = report;
    if (!report.dropped) {
      marks_.epoch_loss += report.loss;
      ++marks_.epoch_steps;
    }
    progress_.step(report);
    if (report.last) return false;
    if (auto done = write_before_test(); !done) return done.error();
    return !at_end();
  }

  /// Writes a due checkpoint before the test: the test averages running statistics, which an uninterrupted
  /// training would not do here.
  Result<> write_before_test() {
    const std::uint64_t step = trainer_.position().step;
    const std::uint64_t every = options_.checkpoint_every;
    const bool due = every != 0 && step != 0 && step % every == 0;
    if (!due && !at_end()) return {};
    if (auto done = trainer_.average_nodes(); !done) return done;
    return checkpoints_.write();
  }

  /// True after the end of an epoch, or of the training, that has not been tested.
  bool test_due() const {
    return trainer_.position().epoch > marks_.tested_epochs ||
           (at_end() && marks_.tested_step != trainer_.position().step);
  }

  /// Does the test and checkpoint that are due at the present step, which may have been made with other
  /// ranks.
  Result<> settle() {
    if (auto done = write_before_test(); !done) return done;
    const TrainingPosition& position = trainer_.position();
    const bool epoch_begins = position.segment_begin == 0 && position.segment_step == 0 && position.step != 0;
    if (test_due()) {
      if (auto done = test(epoch_begins ? position.epoch - 1 : position.epoch); !done) return done;
    }
    if (options_.checkpoint_every != 0 || at_end() || !epoch_begins) return {};
    return checkpoints_.write();
  }

  Result<> train() {
    for (;;) {
      if (auto done = settle(); !done) return done;
      if (is_complete()) return {};
      epoch_start_ = Clock::now();
      const auto on_step = [this](const StepReport& report) { return after_step(report); };
      if (auto done = trainer_.train_epoch(on_step); !done) return done;
    }
  }

  Result<> test(std::int64_t epoch) {
    if (auto done = trainer_.average_nodes(); !done) return done;
    if (auto done = trainer_.average_running_statistics(); !done) return done;
    const auto tested = trainer_.evaluate();
    if (!tested) return tested.error();
    marks_.accuracy = *tested;
    marks_.tested_epochs = trainer_.position().epoch;
    marks_.tested_step = trainer_.position().step;
    progress_.epoch(epoch, *tested, marks_.epoch_loss, marks_.epoch_steps, seconds_since(epoch_start_));
    marks_.epoch_loss = 0;
    marks_.epoch_steps = 0;
    return {};
  }

  /// Equal weights give all ranks the same result.
  Result<> check_finite() {
    Model<T>& model = trainer_.model();
    if (all_finite<T>(model.parameters()) && all_finite<T>(model.running_statistics())) return {};
    return Error{ErrorCode::kUsage, "the weights after step " + std::to_string(trainer_.position().step) +
                                        " are not finite: training has diverged; try a smaller --lr"};
  }

  Result<> finish() {
    print_out("rank %d weights %s\n", world_->rank(), hash_text(trainer_.weights_hash()).c_str());
    const auto hashes = trainer_.gather_hashes();
    if (!hashes) return hashes.error();
    if (auto equal = check_equal(*hashes); !equal) return equal.error();
    if (auto finite = check_finite(); !finite) return finite;
    if (speaks_)
      print_out("weights equal on %d %s: %s\n", world_->world_size(),
                world_->world_size() == 1 ? "rank" : "ranks", hash_text((*hashes)[0]).c_str());
    if (options_.export_to.empty()) return {};
    const auto write = [this]() -> Result<> {
      if (!speaks_) return {};
      return export_model<T>(options_.export_to, trainer_.model());
    };
    return share_outcome(*world_, write, options_.comm_timeout / 4, interrupt_);
  }

  const TrainOptions& options_;
  const DataSplit& data_;
  ThreadPool threads_;
  std::unique_ptr<Model<T>> model_;
  Communicator* world_ = nullptr;
  Communicator* sums_ = nullptr;  ///< all-reduces the gradients
  int interrupt_ = -1;
  std::uint32_t attempt_ = 0;
  bool speaks_ = false;
  Trainer<T> trainer_;
  Progress progress_;
  CheckpointRun<T> checkpoints_;
  bool held_ = false;  ///< this process holds the training's state
  TrainingMarks marks_;
  Clock::time_point epoch_start_ = Clock::now();
  Result<> traces_;  ///< outcome of writing the traces, equal on all ranks
};

}  // namespace

std::unique_ptr<TrainingRun> make_training_run(const TrainOptions& options, const DataSplit& data,
                                               OnPhase on_phase) {
  if (options.dtype == Dtype::kFloat64)
    return std::make_unique<TypedTrainingRun<double>>(options, data, std::move(on_phase));
  return std::make_unique<TypedTrainingRun<float>>(options, data, std::move(on_phase));
}

Result<> run_training(const TrainOptions& options, Communicators communicators, const DataSplit& data,
                      const std::string& control) {
  std::unique_ptr<rendezvous::WorkerLinkClient> link;
  if (!control.empty()) {
    auto connected = rendezvous::WorkerLinkClient::connect(control, false, options.zero);
    if (connected) link = std::move(*connected);
  }
  OnPhase on_phase;
  if (link)
    on_phase = [&link](std::uint64_t step, const char* phase, double loss) { link->at(step, phase, loss); };
  return make_training_run(options, data, std::move(on_phase))->go({communicators});
}

}  // namespace ddp::train
