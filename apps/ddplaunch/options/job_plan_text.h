#pragma once

#include <string>

#include "launcher/job/job_spec.h"

namespace ddp {

/// What --dry-run prints: the job as it would start. Of the environment names only, never values.
std::string job_plan_text(const launcher::JobSpec& spec);

/// The worker's command in words that can be pasted into a shell.
std::string command_text(const launcher::WorkerCommand& command);

}  // namespace ddp
