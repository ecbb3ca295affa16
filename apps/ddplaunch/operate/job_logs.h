#pragma once

#include "apps/ddplaunch/operate/operate_options.h"
#include "base/result.h"
#include "launcher/control/job_registry.h"

namespace ddp {

/// Prints the workers' output from the files of the job, each line with its rank; with --follow until the job
/// has ended. It only reads files, so a viewer that is stopped costs the job nothing. With `attach` it begins
/// with what is written from now on, prints changes of the job's state to stderr, and returns false when
/// Ctrl-C has ended it. Blocks.
Result<bool> print_logs(const OperateOptions& options, const launcher::JobEntry& job);

}  // namespace ddp
