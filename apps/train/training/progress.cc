#include "apps/train/training/progress.h"

#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <nlohmann/json.hpp>

#include "apps/train/training/run_output.h"
#include "base/clock.h"
#include "base/format_text.h"

namespace ddp::train {

namespace {

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr int kBarCells = 20;

/// Returns " loss MEAN"; empty if no step counts.
std::string loss_text(double sum, int steps) {
  return steps == 0 ? "" : format_text(" loss %.4g", sum / steps);
}

}  // namespace

Progress::Progress(const TrainOptions& options)
    : bar_mode_(options.bar),
      interval_(options.log_interval),
      epochs_(options.epochs),
      metrics_path_(options.metrics_file) {}

void Progress::attach(int rank, int world_size) {
  clear_bar();
  restart();
  world_size_ = world_size;
  speaks_ = rank == 0;
  bar_ = speaks_ &&
         (bar_mode_ == BarMode::kAlways || (bar_mode_ == BarMode::kAuto && ::isatty(STDOUT_FILENO) == 1));
}

Result<> Progress::open() {
  if (!speaks_ || metrics_path_.empty() || metrics_.is_open()) return {};
  auto opened = metrics_.open("--metrics-file", metrics_path_);
  if (opened || opened.error().sys != ENOENT) return opened;
  Error error = opened.error();
  error.text += "; give a file in a directory that exists on the node of rank 0";
  return error;
}

std::string Progress::step_record(const StepReport& report) const {
  auto record = begin_record("step", 0, world_size_);
  record.update({{"step", report.total},
                 {"epoch", report.epoch + 1},
                 {"loss", report.loss},
                 {"lr", report.lr},
                 {"images", report.images}});
  if (report.norm > 0) record["norm"] = report.norm;
  record["dropped"] = report.dropped;
  for (std::size_t i = 0; i < kPhases; ++i)
    record["seconds"][std::string(kPhaseNames[i])] = rounded(report.times[i], 6);
  return record_line(record);
}

void Progress::step(const StepReport& report) {
  if (!speaks_) return;
  if (metrics_.is_open()) metrics_.append(step_record(report));

  images_ += report.images;
  if (report.dropped) {
    say("step " + std::to_string(report.total) +
        " dropped on all ranks: the gradient is not finite; the weights are unchanged");
  } else {
    loss_ += report.loss;
    ++steps_;
  }
  if (bar_) draw_bar(report);
  if (report.step % interval_ != 0 && report.step != report.steps) return;
  end_interval(report);
}

void Progress::end_interval(const StepReport& report) {
  const double rate = static_cast<double>(images_) / seconds_since(start_);
  say(format_text("epoch %d/%d step %d/%d%s %.0f images/s", report.epoch + 1, epochs_, report.step,
                  report.steps, loss_text(loss_, steps_).c_str(), rate));
  if (metrics_.is_open()) {
    auto record = begin_record("interval", 0, world_size_);
    record.update({{"step", report.total},
                   {"epoch", report.epoch + 1},
                   {"loss", loss_ / steps_},
                   {"images_per_second", rounded(rate, 1)}});
    metrics_.append(record_line(record));
  }
  restart();
}

void Progress::epoch(std::int64_t epoch, const Accuracy& accuracy, double loss, int steps, double seconds) {
  if (!speaks_) return;
  say(format_text("epoch %" PRId64 "/%d%s test accuracy %.2f %% in %.1f s", epoch + 1, epochs_,
                  loss_text(loss, steps).c_str(), accuracy.percent(), seconds));
  if (metrics_.is_open()) {
    auto record = begin_record("epoch", 0, world_size_);
    record.update({{"epoch", epoch + 1},
                   {"test_correct", accuracy.correct},
                   {"test_total", accuracy.total},
                   {"loss", loss / steps},
                   {"seconds", rounded(seconds, 3)}});
    metrics_.append(record_line(record));
  }
  restart();
}

void Progress::say(const std::string& line) {
  if (!speaks_) return;
  clear_bar();
  print_out("%s\n", line.c_str());
}

void Progress::draw_bar(const StepReport& report) {
  const auto now = Clock::now();
  if (bar_shown_ && now - drawn_ < kBarInterval) return;
  drawn_ = now;
  bar_shown_ = true;
  const int full = report.step * kBarCells / report.steps;
  const std::string cells = std::string(static_cast<std::size_t>(full), '#') +
                            std::string(static_cast<std::size_t>(kBarCells - full), '.');
  print_out("\repoch %d/%d [%s] %d/%d loss %.4g", report.epoch + 1, epochs_, cells.c_str(), report.step,
            report.steps, report.loss);
}

void Progress::clear_bar() {
  if (bar_shown_) print_out("\r\033[K");
  bar_shown_ = false;
}

void Progress::restart() {
  start_ = Clock::now();
  images_ = 0;
  loss_ = 0;
  steps_ = 0;
}

}  // namespace ddp::train
