#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "launcher/report/exit_report.h"

namespace ddp::launcher {

/// Figures of a whole run.
struct RunSummary {
  std::chrono::nanoseconds duration{0};
  std::uint64_t output_bytes = 0;  ///< that the workers wrote
  double goodput = 0;              ///< see JobProgress
};

/// Returns the text of the report, with a summary if the run lasted for a minute or `always`. After success,
/// when the report has no text, a run with restarts has one, too. After a failure the report names restarts.
std::string text_with_summary(const ExitReport& report, const JobEnd& end, const RunSummary& summary,
                              bool always);

}  // namespace ddp::launcher
