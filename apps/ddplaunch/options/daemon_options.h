#pragma once

#include "apps/ddplaunch/options/findings.h"
#include "apps/ddplaunch/options/option_groups.h"
#include "apps/ddplaunch/options/options.h"

namespace ddp {

/// --launcher daemon: its port, and what has no meaning without SSH. After the hosts and their wrappers.
void read_daemon_options(const OptionValues& values, const Surroundings& surroundings,
                         launcher::JobSpec& spec, Findings& findings);

}  // namespace ddp
