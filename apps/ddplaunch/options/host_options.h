#pragma once

#include "apps/ddplaunch/options/findings.h"
#include "apps/ddplaunch/options/option_groups.h"
#include "apps/ddplaunch/options/options.h"

namespace ddp {

/// Fills hosts, max_nodes, nproc, oversubscribe and launcher of `spec`: --hostfile or --host, --include or
/// --exclude,
/// --nnodes, --nproc-per-node against the slots, --launcher.
void read_host_options(const OptionValues& values, const Surroundings& surroundings, launcher::JobSpec& spec,
                       Findings& findings);

}  // namespace ddp
