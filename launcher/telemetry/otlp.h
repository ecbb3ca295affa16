#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/report/job_status.h"
#include "launcher/report/journal.h"

namespace ddp::launcher {

/// Attributes of the process that sends, such as service.name.
using OtlpResource = std::vector<std::pair<std::string, std::string>>;

/// Returns the metrics of metrics_of() as an ExportMetricsServiceRequest of OTLP 1.x in JSON. `started`: of
/// the job, from which counters count.
std::string otlp_metrics(const MetricsTable& table, const OtlpResource& resource,
                         std::chrono::system_clock::time_point started,
                         std::chrono::system_clock::time_point now);

/// Makes spans of the attempts of a job, and one of the job that contains them (sans-IO).
class AttemptSpans {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// `ids`: 48 random hexadecimal digits: of the trace, and of the job's span.
  AttemptSpans(OtlpResource resource, std::string ids, std::string job, Time started)
      : resource_(std::move(resource)), ids_(std::move(ids)), job_(std::move(job)), started_(started) {}

  /// Returns the spans that this event ends, as an ExportTraceServiceRequest in JSON; empty: none.
  std::string on_event(const JournalEvent& event, Time now);

 private:
  struct SpanEvent {
    std::string name, node, reason;
    Time time;
  };
  struct Attempt {
    std::uint32_t number = 0;
    int ranks = 0;
    std::size_t nodes = 0;
    Time started;
    std::string failure;  ///< why it was stopped; empty: not because of a failure
    std::vector<SpanEvent> events;
  };

  OtlpResource resource_;
  std::string ids_;
  std::string job_;
  Time started_;
  std::optional<Attempt> attempt_;  ///< that runs
};

}  // namespace ddp::launcher
