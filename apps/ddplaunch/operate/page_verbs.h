#pragma once

#include "apps/ddplaunch/operate/operate_options.h"
#include "base/result.h"
#include "launcher/control/job_registry.h"

namespace ddp {

/// `ddplaunch report`: writes the page about a job, whose files exist, to --output. kUsage: no --output.
Result<> write_report(const OperateOptions& options, const launcher::JobEntry& job);

/// `ddplaunch dashboard`: prints the address of the page and serves it until the process ends. Errors of the
/// address and of --token-file.
Result<> serve_page(const OperateOptions& options, const launcher::JobEntry& job);

}  // namespace ddp
