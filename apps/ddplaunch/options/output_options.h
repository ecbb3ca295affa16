#pragma once

#include "apps/ddplaunch/options/findings.h"
#include "apps/ddplaunch/options/option_groups.h"
#include "apps/ddplaunch/options/options.h"

namespace ddp {

/// Fills quiet and output of `spec`: what is shown of the workers' output, and what is kept where.
void read_output_options(const OptionValues& values, const Surroundings& surroundings,
                         launcher::JobSpec& spec, Findings& findings);

}  // namespace ddp
