#pragma once

#include <string>

#include "launcher/job/job_spec.h"

namespace ddp {

/// Returns the output of --dry-run: the job as it would start. It shows only the names of environment
/// variables, never their values.
std::string job_plan_text(const launcher::JobSpec& spec);

/// Returns the worker's command as words that can be pasted into a shell.
std::string command_text(const launcher::WorkerCommand& command);

}  // namespace ddp
