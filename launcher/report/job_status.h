#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/job_progress.h"

namespace ddp::launcher {

/// A snapshot of a running job (docs/users/operate.md).
struct JobStatus {
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

    /// Returns the step that all ranks of the node have completed that report steps.
    std::optional<std::uint64_t> lowest_step() const;
  };
  std::string job;
  std::string state;
  std::string why;                  ///< while the user's stop is carried out, see why_stopped(); else empty
  std::chrono::nanoseconds age{0};  ///< since the start of ddplaunch
  int world_size = 0;               ///< 0: not yet known
  std::uint32_t attempt = 0;
  int restarts = 0;  ///< see JobEnd
  int max_restarts = 0;
  std::uint64_t output_bytes = 0;  ///< that the workers wrote
  std::string directory;
  JobProgress::Figures progress;
  std::vector<std::string> warnings;  ///< the latest, such as that the disk is full
  std::vector<NodeStatus> nodes;
};

/// Returns the status as one line of JSON.
std::string status_json(const JobStatus& status);

/// Returns the status in Prometheus's text format 0.0.4 (docs/users/metrics.md).
std::string metrics_text(const JobStatus& status);

}  // namespace ddp::launcher
