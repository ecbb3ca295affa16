#include "apps/train/training/step_profile.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

namespace ddp::train {

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

}  // namespace ddp::train
