#include "apps/train/training/run_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <ctime>

#include <nlohmann/json.hpp>

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
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(file_.get(), line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    done += static_cast<std::size_t>(written);
  }
  if (done == line.size()) return;
  std::fprintf(stderr, "train: %s; training continues without this file\n",
               system_error(errno, name_).text.c_str());
  // A half line would pass for a broken file. Truncating fails only if the file is no longer under our
  // control.
  if (done > 0 && before >= 0) (void)!::ftruncate(file_.get(), before);
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
  if (on_phase_) on_phase_(phase);
  const auto now = Clock::now();
  if (in_phase_) {
    now_[static_cast<std::size_t>(phase_)] += std::chrono::duration<double>(now - phase_begin_).count();
    if (trace_ && events_.size() < kMaxEvents) events_.push_back({phase_, step_, phase_begin_, now});
  }
  in_phase_ = true;
  phase_ = phase;
  phase_begin_ = now;
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

double StepProfile::compute_percentile(double part) const {
  std::vector<double> values;
  for (const StepTimes& step : steps_) {
    values.push_back(step[static_cast<std::size_t>(Phase::kForward)] +
                     step[static_cast<std::size_t>(Phase::kBackward)] +
                     step[static_cast<std::size_t>(Phase::kOptimizer)]);
  }
  return nearest_rank(std::move(values), part);
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
  return path.substr(0, at) + ".rank" + std::to_string(world.rank()) + path.substr(at);
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
  const auto faster = [](const RankTime& a, const RankTime& b) { return a.seconds < b.seconds; };
  const RankTime slowest = *std::max_element(ranks.begin(), ranks.end(), faster);
  std::sort(ranks.begin(), ranks.end(), faster);
  // The lower median: with two ranks it is the faster one, else no rank could be slower than the median.
  const double median = ranks[(ranks.size() - 1) / 2].seconds;
  add("slowest rank %d: computes %.3f ms per step, %.0f %% over the median rank\n", slowest.rank,
      1e3 * slowest.seconds, median > 0 ? 100 * (slowest.seconds / median - 1) : 0.0);
  return text;
}

Result<> report_profile(Communicator& world, const StepProfile& profile, const std::string& path,
                        Result<>& traces) {
  traces = share_first_failure(world, profile.write_trace(profile_path(path, world), world.rank()));
  const std::uint64_t mine[] = {std::bit_cast<std::uint64_t>(profile.compute_percentile(0.5)),
                                profile.steps()};
  const auto all = DDP_TRY(world.all_gather(mine));
  if (world.rank() != 0) return {};
  std::vector<RankTime> ranks;
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    if (all[i + 1] != 0) ranks.push_back({static_cast<int>(i / 2), std::bit_cast<double>(all[i])});
  }
  print_out("%s", profile_text(profile, std::move(ranks)).c_str());
  return {};
}

}  // namespace ddp::train
