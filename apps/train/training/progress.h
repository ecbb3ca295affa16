#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "apps/train/options/options.h"
#include "apps/train/training/run_output.h"
#include "apps/train/training/step_report.h"
#include "base/result.h"

namespace ddp::train {

/// Reports a training's progress on rank 0; other ranks report nothing. On stdout: a line per interval and
/// per epoch and, if requested, one bar that is redrawn in place. In the metrics file: a record per line
/// (docs/users/train.md).
class Progress {
 public:
  explicit Progress(const TrainOptions& options);

  /// Sets this rank's number and the number of ranks.
  void attach(int rank, int world_size);
  /// Opens the metrics file for appending, unless it is open.
  Result<> open();
  void step(const StepReport& report);
  /// `loss` is a sum over `steps`.
  void epoch(std::int64_t epoch, const Accuracy& accuracy, double loss, int steps, double seconds);
  /// Prints a line of its own.
  void say(const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;
  void draw_bar(const StepReport& report);
  void clear_bar();
  void restart();
  void end_interval(const StepReport& report);
  std::string step_record(const StepReport& report) const;

  BarMode bar_mode_;
  int world_size_ = 1;
  bool speaks_ = false;
  bool bar_ = false;
  int interval_;
  int epochs_;
  std::string metrics_path_;
  LineFile metrics_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_{};
  bool bar_shown_ = false;
  std::size_t images_ = 0;
  double loss_ = 0;
  int steps_ = 0;
};

}  // namespace ddp::train
