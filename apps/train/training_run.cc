#include "apps/train/training_run.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/checkpoint_run.h"
#include "apps/train/conv_net.h"
#include "apps/train/equal_options.h"
#include "apps/train/mlp.h"
#include "apps/train/model_file.h"
#include "apps/train/output_place.h"
#include "apps/train/progress.h"
#include "apps/train/shared_outcome.h"
#include "apps/train/standard_output.h"
#include "apps/train/thread_pool.h"

namespace ddp::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string hash_text(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

/// The hash that the most ranks share is taken as the right one.
Result<> check_equal(const std::vector<std::uint64_t>& hashes) {
  std::size_t best = 0;
  std::ptrdiff_t best_count = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const auto count = std::count(hashes.begin(), hashes.end(), hashes[i]);
    if (count > best_count) {
      best = i;
      best_count = count;
    }
  }
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
std::unique_ptr<Model<T>> make_model(const Options& options, ThreadPool& threads) {
  const auto& table = *kernels::find_kernels<T>(options.kernels);  // contradiction() knows that there is one
  std::unique_ptr<Model<T>> model;
  if (options.model == ModelKind::kMlp) {
    model =
        std::make_unique<Mlp<T>>(options.mlp_width, options.mlp_depth, options.batch_size, threads, table);
  } else {
    model = std::make_unique<ConvNet<T>>(options.batch_size, threads, table);
  }
  return model;
}

/// "trace.json" of rank 3 is "trace.rank3.json".
std::string of_rank(const std::string& path, int rank) {
  const std::size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  const std::size_t dot = path.rfind('.');
  const std::size_t at = dot == std::string::npos || dot <= name ? path.size() : dot;
  return path.substr(0, at) + ".rank" + std::to_string(rank) + path.substr(at);
}

/// One training of one rank: the recipe's state.
template <class T>
class Run {
 public:
  Run(const Options& options, Communicators communicators, Model<T>& model, const DataSplit& data)
      : options_(options),
        world_(*communicators.world),
        speaks_(world_.rank() == 0),
        trainer_(options, communicators, model, data),
        progress_(world_.rank(), world_.world_size(), options),
        checkpoints_(options, world_, trainer_, data.training.size()) {}

  Result<> go() {
    if (auto done = share_first_failure(world_, check_places()); !done) return done;
    if (auto done = share_outcome(world_, progress_.open()); !done) return done;
    if (auto done = trainer_.share_weights(); !done) return done;
    if (auto done = checkpoints_.resume([this](const std::string& line) { progress_.say(line); }); !done)
      return done;
    if (auto done = checkpoints_.prepare(); !done) return done;
    if (auto done = train(); !done) return done;
    if (auto done = checkpoints_.finish(); !done) return done;
    if (auto done = finish(); !done) return done;
    if (auto done = report_profile(); !done) return done;
    if (speaks_) {
      print_out("test accuracy %.1f %% (%" PRIu64 "/%" PRIu64 ")\n", accuracy_.percent(), accuracy_.correct,
                accuracy_.total);
    }
    // What is complete but for its last checkpoint or its traces has given all results.
    return checkpoints_.last_outcome() ? traces_ : checkpoints_.last_outcome();
  }

 private:
  bool at_end() const { return options_.max_steps != 0 && trainer_.position().step >= options_.max_steps; }

  /// What is written at the end is tried before hours of work.
  Result<> check_places() {
    if (auto opened = trainer_.open_sample_log(); !opened) return opened;
    if (speaks_ && !options_.export_to.empty()) {
      if (auto place = check_export_place(options_.export_to); !place) return place;
    }
    if (options_.profile.empty()) return {};
    return check_output_place("--profile", profile_path());
  }

  std::string profile_path() const {
    return world_.world_size() == 1 ? options_.profile : of_rank(options_.profile, world_.rank());
  }

  Result<bool> after_step(const StepReport& report) {
    progress_.step(report);
    const bool due = options_.checkpoint_every != 0 && report.total % options_.checkpoint_every == 0;
    // Before the test: it averages running statistics, which an uninterrupted training would not do here.
    if (due || at_end()) {
      if (auto done = trainer_.average_nodes(); !done) return done.error();
      if (auto done = checkpoints_.write(); !done) return done.error();
    }
    return !at_end();
  }

  bool is_complete() const { return trainer_.position().epoch >= options_.epochs || at_end(); }

  Result<> train() {
    if (is_complete()) {
      progress_.say("nothing is left to train: the training ended with step " +
                    std::to_string(trainer_.position().step));
      return test(std::max<std::int64_t>(trainer_.position().epoch, 1) - 1, Clock::now());
    }
    while (!is_complete()) {
      const auto start = Clock::now();
      const std::int64_t epoch = trainer_.position().epoch;
      const auto on_step = [this](const StepReport& report) { return after_step(report); };
      if (auto done = trainer_.train_epoch(on_step); !done) return done;
      if (auto done = test(epoch, start); !done) return done;
      if (options_.checkpoint_every == 0 && !at_end()) {
        if (auto done = checkpoints_.write(); !done) return done;
      }
    }
    return {};
  }

  Result<> test(std::int64_t epoch, Clock::time_point start) {
    if (auto done = trainer_.average_nodes(); !done) return done;
    if (auto done = trainer_.average_running_statistics(); !done) return done;
    const auto tested = trainer_.evaluate();
    if (!tested) return tested.error();
    accuracy_ = *tested;
    progress_.epoch(epoch, accuracy_, seconds_since(start));
    return {};
  }

  Result<> finish() {
    print_out("rank %d weights %s\n", world_.rank(), hash_text(trainer_.weights_hash()).c_str());
    const auto hashes = trainer_.gather_hashes();
    if (!hashes) return hashes.error();
    if (auto equal = check_equal(*hashes); !equal) return equal.error();
    if (speaks_)
      print_out("weights equal on %d ranks: %s\n", world_.world_size(), hash_text((*hashes)[0]).c_str());
    if (options_.export_to.empty()) return {};
    const auto write = [this]() -> Result<> {
      if (!speaks_) return {};
      return export_model<T>(options_.export_to, trainer_.model(),
                             static_cast<std::int64_t>(trainer_.position().step));
    };
    return share_outcome(world_, write, options_.comm_timeout / 4);
  }

  /// The traces, and on rank 0 where the time went and which rank computes slowest.
  Result<> report_profile() {
    if (options_.profile.empty()) return {};
    const StepProfile& profile = trainer_.profile();
    traces_ = share_first_failure(world_, profile.write_trace(profile_path(), world_.rank()));
    const std::uint64_t mine[] = {std::bit_cast<std::uint64_t>(profile.compute_percentile(0.5))};
    const auto all = world_.all_gather(mine);
    if (!all) return all.error();
    if (!speaks_) return {};
    print_out("%-14s %10s %10s\n", "step (ms)", "p50", "p99");
    for (std::size_t i = 0; i < kPhases; ++i) {
      const Phase phase = static_cast<Phase>(i);
      print_out("%-14s %10.3f %10.3f\n", kPhaseNames[i].data(), 1e3 * profile.percentile(phase, 0.5),
                1e3 * profile.percentile(phase, 0.99));
    }
    const auto slowest = std::max_element(all->begin(), all->end(), [](std::uint64_t a, std::uint64_t b) {
      return std::bit_cast<double>(a) < std::bit_cast<double>(b);
    });
    std::vector<std::uint64_t> sorted(*all);  // of positive numbers the bits have the numbers' order
    std::sort(sorted.begin(), sorted.end());
    // The lower one in the middle: of two ranks the faster, or none could be slower than it.
    const double median = std::bit_cast<double>(sorted[(sorted.size() - 1) / 2]);
    const double most = std::bit_cast<double>(*slowest);
    print_out("slowest rank %td: computes %.3f ms per step, %.0f %% over the median rank\n",
              slowest - all->begin(), 1e3 * most, median > 0 ? 100 * (most / median - 1) : 0.0);
    return {};
  }

  const Options& options_;
  Communicator& world_;
  bool speaks_;
  Trainer<T> trainer_;
  Progress progress_;
  CheckpointRun<T> checkpoints_;
  Accuracy accuracy_;
  Result<> traces_;  ///< how writing them went; the same on all ranks
};

template <class T>
Result<> run(const Options& options, Communicators communicators, const DataSplit& data) {
  ThreadPool threads(options.threads);
  auto model = make_model<T>(options, threads);
  model->initialise(static_cast<std::uint64_t>(options.seed));
  if (!options.init_from.empty()) {
    Result<> read;  // the others get the weights by broadcast
    if (communicators.world->rank() == 0) read = import_model<T>(options.init_from, *model);
    if (auto done = share_outcome(*communicators.world, read); !done) return done;
  }
  // Small sums are copied through the nearest caches anyway.
  constexpr std::size_t kWorthSharing = 4u << 20;
  if (model->gradient_bytes() > kWorthSharing) {
    Communicator& sums = communicators.node ? *communicators.node : *communicators.world;
    if (const auto memory = sums.share_memory(model->gradient_bytes()); !memory.empty())
      model->place_gradients(memory);
  }
  return Run<T>(options, communicators, *model, data).go();
}

}  // namespace

Result<> run_training(const Options& options, Communicators communicators, const DataSplit& data) {
  if (auto equal = check_equal(*communicators.world, equal_options(options, data)); !equal) return equal;
  if (options.dtype == Dtype::kFloat64) return run<double>(options, communicators, data);
  return run<float>(options, communicators, data);
}

}  // namespace ddp::train
