#include "apps/train/training/run_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/program.h"
#include "base/text.h"

namespace ddp::train {
namespace {

constexpr int kNotPrinted = 116;

Result<>& outcome() {
  static Result<> of_all;
  return of_all;
}

/// Covers print_out() and other output (--help).
Result<> all_printed() {
  if (!outcome()) return outcome();
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return system_error(errno != 0 ? errno : EIO, "write standard output");
}

constexpr const char* kSchema = "ddp-train-record/1";

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  return format_text("%s.%03dZ", date, static_cast<int>(ms));
}

}  // namespace

void print_out(const char* format, ...) {
  if (!outcome()) return;
  errno = 0;
  va_list arguments;
  va_start(arguments, format);
  const bool written = std::vprintf(format, arguments) >= 0 && std::fflush(stdout) == 0;
  va_end(arguments);
  if (written) return;
  outcome() = system_error(errno, "write standard output");
  std::fprintf(stderr, "train: %s; later output is dropped\n", outcome().error().text.c_str());
}

int exit_code_after_printing(int code) {
  if (code != 0) return code;
  const auto printed = all_printed();
  if (printed) return code;
  std::fprintf(stderr, "train: standard output is incomplete: %s\n", printed.error().text.c_str());
  return kNotPrinted;
}

int fail(const std::string& text, int exit_code) {
  std::fprintf(stderr, "train: %s\n", text.c_str());
  return exit_code;
}

Result<> LineFile::open(const std::string& option, const std::string& path) {
  name_ = option + ' ' + path;
  // Opening a pipe without a reader must not block, but writing to a slow reader may.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  file_ = UniqueFd(::open(path.c_str(), flags | O_NONBLOCK, 0666));
  if (!file_ || ::fcntl(file_.get(), F_SETFL, O_APPEND) != 0) return system_error(errno, name_);
  return {};
}

void LineFile::append(const std::string& line) {
  if (!file_) return;
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);  // -1: a pipe
  // One write per line, so that a reader of the growing file sees whole lines.
  const auto written = write_bytes(file_.get(), line, name_);
  if (written) return;
  std::fprintf(stderr, "train: %s; training continues without this file\n",
               system_error(written.error().sys, name_).text.c_str());
  // A half line would pass for a broken file. Truncating fails only if the file is no longer under our
  // control.
  if (before >= 0) (void)!::ftruncate(file_.get(), before);
  file_ = UniqueFd();
}

nlohmann::ordered_json begin_record(std::string_view kind, int rank, int world_size) {
  static const std::string host = host_name();
  return {{"schema", kSchema}, {"kind", kind}, {"time", utc_now()},
          {"host", host},      {"rank", rank}, {"world_size", world_size}};
}

std::string record_line(const nlohmann::ordered_json& record) {
  return record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

Result<> write_report(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return system_error(errno, "open " + path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) return system_error(errno, "write " + path);
  return {};
}

double rounded(double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

namespace {

constexpr std::size_t kMaxEvents = 1'000'000;
/// Pauses that cost less are not worth a line.
constexpr double kLeastLost = 0.02;

double nearest_rank(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(part * static_cast<double>(values.size()));
  return values[std::min(values.size(), std::max<std::size_t>(static_cast<std::size_t>(rank), 1)) - 1];
}

}  // namespace

StepProfile::StepProfile(bool trace) : trace_(trace) {}

void StepProfile::begin_step(std::uint64_t step) {
  step_ = step;
  now_ = {};
  in_phase_ = false;
}

void StepProfile::enter(Phase phase) {
  const auto now = Clock::now();
  if (in_phase_) end_phase(now);
  in_phase_ = true;
  phase_ = phase;
  phase_begin_ = now;
  if (on_phase_) on_phase_(phase);
}

void StepProfile::end_phase(Clock::time_point end) {
  const double seconds = std::chrono::duration<double>(end - phase_begin_).count();
  now_[static_cast<std::size_t>(phase_)] += seconds;
  if (phase_ == Phase::kCommunication) waited_ += seconds;
  if (trace_ && events_.size() < kMaxEvents) events_.push_back({phase_, step_, phase_begin_, end});
  phase_begin_ = end;
}

void StepProfile::divide(std::span<const std::pair<Phase, double>> parts) {
  const auto now = Clock::now();
  auto left = now - phase_begin_;
  for (const auto& [phase, seconds] : parts)
    left -= std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  phase_ = Phase::kData;
  end_phase(phase_begin_ + std::max(left, Clock::duration{0}));
  for (const auto& [phase, seconds] : parts) {
    phase_ = phase;
    end_phase(phase_begin_ +
              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  }
  phase_begin_ = now;  // the clocks of GPU and host may differ a little
}

const StepTimes& StepProfile::end_step() {
  enter(phase_);
  in_phase_ = false;
  if (steps_.empty()) first_step_ = step_;
  steps_.push_back(now_);
  return steps_.back();
}

double StepProfile::percentile(Phase phase, double part) const {
  std::vector<double> values;
  for (const StepTimes& step : steps_)
    values.push_back(step[static_cast<std::size_t>(phase)]);
  return nearest_rank(std::move(values), part);
}

TimeSummary summarize_times(const std::vector<double>& own, double all) {
  TimeSummary times{nearest_rank(own, 0.5), nearest_rank(own, 0.99)};
  for (const double seconds : own) {
    if (seconds > 2 * times.p50) times.lost += (seconds - times.p50) / all;
  }
  return times;
}

TimeSummary StepProfile::own_times() const {
  std::vector<double> own;
  double all = 0;
  for (const StepTimes& step : steps_) {
    const double whole = std::accumulate(step.begin(), step.end(), 0.0);
    own.push_back(whole - step[static_cast<std::size_t>(Phase::kCommunication)]);
    all += whole;
  }
  return summarize_times(own, all);
}

Result<> StepProfile::write_trace(const std::string& path, int rank) const {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return system_error(errno, "create " + path);
  const double base = std::chrono::duration<double, std::micro>(started_wall_.time_since_epoch()).count();
  const auto micros = [](Clock::duration time) {
    return std::chrono::duration<double, std::micro>(time).count();
  };
  using Json = nlohmann::ordered_json;
  const auto write = [file](const char* before, const Json& event) {
    std::fprintf(file, "%s%s", before, event.dump().c_str());
  };
  write("{\"traceEvents\":[\n", {{"ph", "M"},
                                 {"name", "process_name"},
                                 {"pid", rank},
                                 {"args", {{"name", "rank " + std::to_string(rank)}}}});
  for (const Event& event : events_) {
    write(",\n", {{"ph", "X"},
                  {"name", kPhaseNames[static_cast<std::size_t>(event.phase)]},
                  {"pid", rank},
                  {"tid", 0},
                  {"ts", base + micros(event.begin - started_)},
                  {"dur", micros(event.end - event.begin)},
                  {"args", {{"step", event.step}}}});
  }
  std::fprintf(file, "\n]}\n");
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed) return system_error(errno, "write " + path);
  return {};
}

std::string profile_path(const std::string& path, const Communicator& world) {
  if (world.world_size() == 1) return path;
  const std::size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  const std::size_t dot = path.rfind('.');
  const std::size_t at = dot == std::string::npos || dot <= name ? path.size() : dot;
  return concat(path.substr(0, at), ".rank", world.rank(), path.substr(at));
}

std::string profile_text(const StepProfile& profile, std::vector<RankTime> ranks) {
  std::string text;
  const auto add = [&](auto... words) { text += format_text(words...); };
  if (profile.steps() == 0) {
    add("%s", "profile: the process of rank 0 was started after the last step and measured none\n");
  } else {
    if (profile.first_step() > 1)
      add("profile: begins at step %" PRIu64 ": rank 0's process started there\n", profile.first_step());
    add("%-14s %10s %10s\n", "step (ms)", "p50", "p99");
    for (std::size_t i = 0; i < kPhases; ++i) {
      const Phase phase = static_cast<Phase>(i);
      add("%-14s %10.3f %10.3f\n", kPhaseNames[i].data(), 1e3 * profile.percentile(phase, 0.5),
          1e3 * profile.percentile(phase, 0.99));
    }
  }
  if (ranks.empty()) return text;
  // Sorts the ranks; returns the largest and the lower median. With two ranks the median is the faster one,
  // else no rank could be slower than the median.
  const auto compare = [&](double TimeSummary::*field) {
    const auto time = [field](const RankTime& rank) { return rank.own.*field; };
    std::ranges::stable_sort(ranks, {}, time);
    const auto largest = std::ranges::lower_bound(ranks, time(ranks.back()), {}, time);
    return std::pair(*largest, time(ranks[(ranks.size() - 1) / 2]));
  };
  const auto over = [](double value, double median) { return median > 0 ? 100 * (value / median - 1) : 0.0; };
  const auto [slow, median] = compare(&TimeSummary::p50);
  add("slowest rank %" PRId64 ": computes %.3f ms per step, %.0f %% over the median rank\n", slow.rank,
      1e3 * slow.own.p50, over(slow.own.p50, median));
  const auto [late, median_p99] = compare(&TimeSummary::p99);
  add("slowest rank at p99 %" PRId64 ": computes %.3f ms, %.0f %% over the median rank\n", late.rank,
      1e3 * late.own.p99, over(late.own.p99, median_p99));
  const auto [paused, median_lost] = compare(&TimeSummary::lost);
  if (paused.own.lost > kLeastLost) {
    add("rank %" PRId64
        " loses %.1f %% of its time in steps that take more than twice its median; the median rank "
        "%.1f %%\n",
        paused.rank, 100 * paused.own.lost, 100 * median_lost);
  }
  return text;
}

Result<> report_profile(Communicator& world, const StepProfile& profile, const std::string& path,
                        Result<>& traces) {
  traces = share_outcome(world, profile.write_trace(profile_path(path, world), world.rank()));
  constexpr int kNone = -1;  // made no step
  const RankTime mine{profile.steps() == 0 ? kNone : world.rank(), profile.own_times()};
  auto ranks = DDP_TRY(gather_values(world, mine));
  if (world.rank() != 0) return {};
  std::erase_if(ranks, [](const RankTime& one) { return one.rank == kNone; });
  print_out("%s", profile_text(profile, std::move(ranks)).c_str());
  return {};
}

}  // namespace ddp::train
