#pragma once

#include "launcher/job_spec.h"

namespace ddp {

/// Runs a validated job in the foreground: shells, master, exit code (docs/exit_codes.md).
int launch(const launcher::JobSpec& spec);

}  // namespace ddp
