#pragma once

#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "apps/ddplaunch/start_up.h"
#include "launcher/check/check_judge.h"
#include "launcher/check/check_run.h"

namespace ddp {

/// `ddplaunch check --deep` and `--collectives`: runs the bundled trainer on the hosts and adds what it
/// found. Not where the hosts could not run a job anyhow, which is said on stderr. A signal of the user's
/// stands in `result`.
void check_deep(const RunJob& job, const GivenToken& token, launcher::CheckResult& result,
                std::vector<launcher::CheckFinding>& findings);

}  // namespace ddp
