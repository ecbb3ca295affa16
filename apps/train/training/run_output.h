#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/train/collectives/communicator.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Prints to standard output and flushes. When the output cannot be written any more (full, or its reader has
/// gone), one line on stderr says so, and later output is dropped: the training is worth more than its lines.
[[gnu::format(printf, 1, 2)]] void print_out(const char* format, ...);
/// For the end of main: returns `code`, or 116 if `code` is 0 but some output was lost, with the reason on
/// stderr (like ddplaunch's own results, docs/users/exit_codes.md).
int exit_code_after_printing(int code);
inline constexpr int kFailed = 1;
/// Prints an error to stderr: "train: TEXT". Returns the exit code.
int fail(const std::string& text, int exit_code = kFailed);

/// A file to which a training appends whole lines. A training is worth more than its record. After a failed
/// write (a full disk, a pipe whose reader has gone), one line on stderr says so. A half line is removed, and
/// later lines are dropped.
class LineFile {
 public:
  /// `option` gave the path, and is named in messages.
  Result<> open(const std::string& option, const std::string& path);
  bool is_open() const { return static_cast<bool>(file_); }
  /// Appends `line`, which includes its line end; does nothing if no file is open.
  void append(const std::string& line);

 private:
  std::string name_;  ///< "--metrics-file FILE"
  UniqueFd file_;
};

/// Returns the beginning of every record of --metrics-file and --json: the schema (docs/users/train.md), the
/// kind, the time, this host, the writing rank and the number of ranks.
nlohmann::ordered_json begin_record(std::string_view kind, int rank, int world_size);

/// Returns the record as a line with its line end. Bytes that are not UTF-8 become U+FFFD; nan and infinity
/// become null.
std::string record_line(const nlohmann::ordered_json& record);

/// Writes the file of --json.
Result<> write_report(const std::string& path, const std::string& text);

/// Rounds a measured value, so that a record has no meaningless digits.
double rounded(double value, int decimals);

/// The parts of a step's time. Communication is time in a communicator's calls, also during the backward
/// pass: sums that run while the rank computes cost nothing here.
enum class Phase : std::uint8_t { kData, kForward, kBackward, kCommunication, kOptimizer };
inline constexpr std::size_t kPhases = 5;
inline constexpr std::string_view kPhaseNames[kPhases] = {"data", "forward", "backward", "communication",
                                                          "optimizer"};

/// Seconds by phase.
using StepTimes = std::array<double, kPhases>;

/// The times of many steps, in seconds.
struct TimeSummary {
  double p50 = 0, p99 = 0;
  /// The part of all time that was lost in steps of more than twice the median: the process was stopped, or
  /// waited for data or for a core. A percentile misses pauses that are rare.
  double lost = 0;
};
/// `all`: the seconds of which `lost` is a part.
TimeSummary summarize_times(const std::vector<double>& own, double all);

/// Measures phases, one at a time, and keeps every step's times. With `trace`, it also keeps the begin and
/// end of up to a million phases. One thread.
class StepProfile {
 public:
  using Clock = std::chrono::steady_clock;
  explicit StepProfile(bool trace);
  /// `on_phase` is called with each phase that begins.
  void watch(std::function<void(Phase)> on_phase) { on_phase_ = std::move(on_phase); }

  void begin_step(std::uint64_t step);
  /// Ends the previous phase.
  void enter(Phase phase);
  const StepTimes& end_step();
  /// Gives the end of the present phase to `parts`, in this order: the GPU has measured them. What is left at
  /// its beginning counts as data: the host prepared and launched the step.
  void divide(std::span<const std::pair<Phase, double>> parts);
  /// Returns the present phase, so that a caller can return to it.
  Phase phase() const { return phase_; }

  /// Returns the seconds of communication so far, of all phases that have ended. What a GPU does by itself
  /// counts only where its parts are measured.
  double waited() const { return waited_; }

  /// Returns how many steps have ended.
  std::size_t steps() const { return steps_.size(); }
  /// Returns the number of the first ended step; 0: none. It exceeds 1 if the process started in the middle
  /// of a training.
  std::uint64_t first_step() const { return first_step_; }

  /// Nearest-rank percentile; 0 without a step. `part` 0.5: the median.
  double percentile(Phase phase, double part) const;
  /// Summarizes the steps' own times: all but communication. They reveal a slow rank; on the other ranks only
  /// the waiting time grows.
  TimeSummary own_times() const;

  /// Writes a file for chrome://tracing and Perfetto, with wall-clock times. `rank` is the process in the
  /// trace.
  Result<> write_trace(const std::string& path, int rank) const;

 private:
  struct Event {
    Phase phase;
    std::uint64_t step;
    Clock::time_point begin, end;
  };

  void end_phase(Clock::time_point end);

  bool trace_;
  std::function<void(Phase)> on_phase_;
  Clock::time_point started_ = Clock::now();
  std::chrono::system_clock::time_point started_wall_ = std::chrono::system_clock::now();
  std::uint64_t step_ = 0;
  std::uint64_t first_step_ = 0;
  bool in_phase_ = false;
  Phase phase_ = Phase::kData;
  Clock::time_point phase_begin_;
  StepTimes now_{};
  double waited_ = 0;
  std::vector<StepTimes> steps_;
  std::vector<Event> events_;
};

/// Returns "trace.rank3.json" for "trace.json" on rank 3; in a world of one the name is unchanged.
std::string profile_path(const std::string& path, const Communicator& world);

/// StepProfile::own_times() of a rank.
struct RankTime {
  std::int64_t rank = 0;  ///< without padding behind it, since all bytes are sent
  TimeSummary own;
};

/// Returns rank 0's lines: the parts of a step from its own `profile`, and the slowest of `ranks`, which made
/// a step, by p50, by p99 and by the time that it lost. Each rank knows only the steps of its own process; a
/// line says so if rank 0's process started in the middle of the training.
std::string profile_text(const StepProfile& profile, std::vector<RankTime> ranks);

/// Ends --profile: each rank writes its trace to `path`, and rank 0 prints the parts of a step and the
/// slowest rank. `traces` becomes the outcome of writing, equal on all ranks.
Result<> report_profile(Communicator& world, const StepProfile& profile, const std::string& path,
                        Result<>& traces);

}  // namespace ddp::train
