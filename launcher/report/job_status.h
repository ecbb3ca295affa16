#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/report/job_end.h"
#include "launcher/report/job_progress.h"
#include "launcher/report/sample_history.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The states of a job whose ddplaunch runs. "ended": only while its metrics are still served.
inline constexpr std::array<const char*, 8> kJobStates{
    "connecting", "waiting to restart", "starting", "running", "stalled", "stopping", "ending", "ended"};

/// A snapshot of a running job (docs/users/operate.md).
struct JobStatus {
  struct End {
    std::chrono::system_clock::time_point at;
    int exit_code = 0;
  };
  struct NodeStatus {
    std::string name;
    std::string state;  ///< "connecting", "running", …
    int first_rank = 0;
    int ranks = 0;    ///< 0: it runs none in this attempt
    int running = 0;  ///< of them, whose workers run now
    int ended = 0;    ///< of them, whose workers have ended
    std::vector<std::optional<JobProgress::RankReport>>
        reports;  ///< of each rank; unset: it reports no steps
    std::optional<std::chrono::nanoseconds>
        silence;  ///< time since its last message; unset: it is not connected
    std::optional<rendezvous::NodeSample> usage = {};  ///< unset: not known
    int failed = 0;                                    ///< ranks whose workers have failed by themselves

    /// Returns the step that all ranks of the node have completed that report steps.
    std::optional<std::uint64_t> lowest_step() const;
  };
  std::string job;
  std::string run;                  ///< tells runs of one job id apart
  std::string state;                ///< of kJobStates
  std::string why;                  ///< while the user's stop is carried out, see why_stopped(); else empty
  std::chrono::nanoseconds age{0};  ///< since the start of ddplaunch
  std::chrono::system_clock::time_point started;
  std::optional<End> end;  ///< set when the exit code is settled
  int world_size = 0;      ///< 0: not yet known
  std::uint32_t attempt = 0;
  int restarts = 0;  ///< see JobEnd
  int max_restarts = 0;
  std::uint64_t output_bytes = 0;  ///< that the workers wrote
  std::string directory;
  JobProgress::Figures progress;
  JobUsage usage;
  std::optional<Failure> failure;     ///< root cause of this attempt, or of the last one that failed
  std::optional<HangVerdict> hang;    ///< why it makes no progress; unset: it does, or nobody has looked
  std::vector<std::string> warnings;  ///< the latest, such as that the disk is full
  std::vector<NodeStatus> nodes;
};

/// Returns the status as one line of JSON.
std::string status_json(const JobStatus& status);

using MetricLabels = std::vector<std::pair<const char*, std::string>>;
struct MetricFamily {
  struct Sample {
    const char* suffix;  ///< of a histogram: "_bucket" (with the label le, cumulative), "_sum", "_count"
    MetricLabels labels;
    std::variant<std::uint64_t, double> value;
  };
  std::string name;
  const char* type;  ///< "gauge", "counter" or "histogram"
  const char* help;
  std::vector<Sample> samples;
};
struct MetricsTable {
  MetricLabels common;  ///< of every sample
  std::vector<MetricFamily> families;
};

/// Returns the metrics of the job: all series of docs/users/metrics.md, in its order.
MetricsTable metrics_of(const JobStatus& status);
/// Returns them in Prometheus's text format 0.0.4.
std::string metrics_text(const JobStatus& status);

}  // namespace ddp::launcher
