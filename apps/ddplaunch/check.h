#pragma once

#include "apps/ddplaunch/options/options.h"
#include "apps/ddplaunch/start_up.h"

namespace ddp {

/// `ddplaunch check` and `ddplaunch hosts`: asks all hosts, prints what they told to stdout, and returns the
/// exit code (docs/check.md). Starts no worker and leaves no file.
int check(const RunJob& job, const GivenToken& token);

}  // namespace ddp
