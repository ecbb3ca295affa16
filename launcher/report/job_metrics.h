#pragma once

#include <string>

#include "launcher/report/job_status.h"

namespace ddp::launcher {

/// Returns the status in Prometheus's text format 0.0.4 (docs/users/metrics.md).
std::string metrics_text(const JobStatus& status);

}  // namespace ddp::launcher
