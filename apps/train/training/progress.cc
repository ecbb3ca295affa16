#include "apps/train/training/progress.h"

#include <unistd.h>

#include <cinttypes>
#include <cmath>
#include <cstdarg>

#include "apps/train/training/run_output.h"

namespace ddp::train {

namespace {

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr int kBarCells = 20;

[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

/// JSON has no nan and no infinity.
std::string number(double value) {
  return std::isfinite(value) ? text_of("%.17g", value) : "null";
}

/// Returns " loss MEAN"; empty if no step counts.
std::string loss_text(double sum, int steps) {
  return steps == 0 ? "" : text_of(" loss %.4g", sum / steps);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
  return metrics_.open(metrics_path_);
}

std::string Progress::step_record(const StepReport& report) const {
  std::string line =
      record_head("step", 0, world_size_) +
      text_of(",\"step\":%" PRIu64 ",\"epoch\":%d,\"loss\":%s,\"lr\":%s,\"images\":%zu,", report.total,
              report.epoch + 1, number(report.loss).c_str(), number(report.lr).c_str(), report.images);
  if (report.norm > 0) line += "\"norm\":" + number(report.norm) + ",";
  line += text_of("\"dropped\":%s,\"seconds\":{", report.dropped ? "true" : "false");
  for (std::size_t i = 0; i < kPhases; ++i)
    line += text_of("%s\"%s\":%.6f", i == 0 ? "" : ",", kPhaseNames[i].data(), report.times[i]);
  return line + "}}\n";
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
  say(text_of("epoch %d/%d step %d/%d%s %.0f images/s", report.epoch + 1, epochs_, report.step, report.steps,
              loss_text(loss_, steps_).c_str(), rate));
  if (metrics_.is_open()) {
    metrics_.append(record_head("interval", 0, world_size_) +
                    text_of(",\"step\":%" PRIu64 ",\"epoch\":%d,\"loss\":%s,\"images_per_second\":%.1f}\n",
                            report.total, report.epoch + 1, number(loss_ / steps_).c_str(), rate));
  }
  restart();
}

void Progress::epoch(std::int64_t epoch, const Accuracy& accuracy, double loss, int steps, double seconds) {
  if (!speaks_) return;
  say(text_of("epoch %" PRId64 "/%d%s test accuracy %.2f %% in %.1f s", epoch + 1, epochs_,
              loss_text(loss, steps).c_str(), accuracy.percent(), seconds));
  if (metrics_.is_open()) {
    metrics_.append(record_head("epoch", 0, world_size_) +
                    text_of(",\"epoch\":%" PRId64 ",\"test_correct\":%" PRIu64 ",\"test_total\":%" PRIu64
                            ",\"loss\":%s,\"seconds\":%.3f}\n",
                            epoch + 1, accuracy.correct, accuracy.total, number(loss / steps).c_str(),
                            seconds));
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
