#pragma once

#include "apps/ddplaunch/start_up.h"
#include "launcher/job/job_spec.h"

namespace ddp {

/// Per-node mode: this process is node 0 and the job's master, or joins it as one of its nodes. Returns the
/// exit code, on all nodes that of the job. Before any thread.
int run_per_node(const launcher::JobSpec& spec, GivenToken given);

}  // namespace ddp
