#pragma once

#include "apps/ddplaunch/operate/operate_options.h"
#include "base/result.h"
#include "launcher/control/job_registry.h"

namespace ddp {

/// `ddplaunch exec` and `ddplaunch stacks`: asks a running job, prints the answer, and returns the exit code.
/// When this process ends, so does the command. kUsage: there is no command, or no such worker. Blocks.
Result<int> ask_workers(OperateVerb verb, const OperateOptions& options, const launcher::JobEntry& job);

}  // namespace ddp
