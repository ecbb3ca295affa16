#include "apps/train/training_run.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <string>

#include "apps/train/trainer.h"

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

/// Whole lines, for a pipe as for a terminal: every `interval` steps and after the last one.
class Progress {
 public:
  Progress(bool prints, int interval, int epochs) : prints_(prints), interval_(interval), epochs_(epochs) {}

  void step(const StepReport& report) {
    images_ += report.images;
    loss_ += report.loss;
    ++steps_;
    epoch_loss_ = report.step == 1 ? report.loss : epoch_loss_ + report.loss;
    if (report.step == report.steps) epoch_loss_ /= report.steps;
    if (report.step % interval_ != 0 && report.step != report.steps) return;
    if (prints_) {
      std::printf("epoch %d/%d step %d/%d loss %.4g %.0f images/s\n", report.epoch + 1, epochs_, report.step,
                  report.steps, loss_ / steps_, static_cast<double>(images_) / seconds_since(start_));
    }
    restart();
  }
  void epoch(int epoch, const Accuracy& accuracy, double seconds) {
    if (prints_) {
      std::printf("epoch %d/%d loss %.4g test accuracy %.2f %% in %.1f s\n", epoch + 1, epochs_, epoch_loss_,
                  accuracy.percent(), seconds);
    }
    restart();
  }

 private:
  void restart() {
    start_ = Clock::now();
    images_ = 0;
    loss_ = 0;
    steps_ = 0;
  }

  bool prints_;
  int interval_;
  int epochs_;
  Clock::time_point start_ = Clock::now();
  std::size_t images_ = 0;
  double loss_ = 0;
  int steps_ = 0;
  double epoch_loss_ = 0;
};

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
Result<> run(const Options& options, Communicator& communicator, const DataSplit& data) {
  const bool speaks = communicator.rank() == 0;
  Trainer<T> trainer(options, communicator, data);
  if (auto done = trainer.share_weights(); !done) return done.error();

  Progress progress(speaks, options.log_interval, options.epochs);
  const auto on_step = [&progress](const StepReport& report) { progress.step(report); };
  Accuracy accuracy;
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const auto start = Clock::now();
    if (auto done = trainer.train_epoch(epoch, on_step); !done) return done.error();
    if (auto done = trainer.average_running_statistics(); !done) return done.error();
    const auto tested = trainer.evaluate();
    if (!tested) return tested.error();
    accuracy = *tested;
    progress.epoch(epoch, accuracy, seconds_since(start));
  }

  std::printf("rank %d weights %s\n", communicator.rank(), hash_text(trainer.weights_hash()).c_str());
  const auto hashes = trainer.gather_hashes();
  if (!hashes) return hashes.error();
  if (auto equal = check_equal(*hashes); !equal) return equal.error();
  if (speaks) {
    std::printf("weights equal on %d ranks: %s\n", communicator.world_size(),
                hash_text((*hashes)[0]).c_str());
    std::printf("test accuracy %.1f %% (%" PRIu64 "/%" PRIu64 ")\n", accuracy.percent(), accuracy.correct,
                accuracy.total);
  }
  return {};
}

}  // namespace

Result<> run_training(const Options& options, Communicator& communicator, const DataSplit& data) {
  if (options.dtype == Dtype::kFloat64) return run<double>(options, communicator, data);
  return run<float>(options, communicator, data);
}

}  // namespace ddp::train
