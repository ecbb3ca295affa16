#pragma once

#include <string>

#include "apps/ddplaunch/options/findings.h"
#include "apps/ddplaunch/options/option_groups.h"
#include "apps/ddplaunch/options/options.h"

namespace ddp {

/// What a scheduler around this process says about hosts that no option names. In a Slurm job they are the
/// nodes of the job, started with srun. Where srun starts one launcher for each task, a job on this machine
/// alone would have the wrong world without a word: a mistake.
void heed_scheduler(const Surroundings& surroundings, OptionValues& values, Findings& findings);

}  // namespace ddp
