#pragma once

#include "apps/ddplaunch/options/findings.h"
#include "apps/ddplaunch/options/option_groups.h"
#include "apps/ddplaunch/options/options.h"

namespace ddp {

/// Fills env, local_env and explicit_env of `spec`: what is forwarded of the launcher's own environment, and
/// over it, later over earlier: .deepspeed_env of the home directory, of the current one, --env-file, --env.
void read_env_options(const OptionValues& values, const Surroundings& surroundings, launcher::JobSpec& spec,
                      Findings& findings);

}  // namespace ddp
