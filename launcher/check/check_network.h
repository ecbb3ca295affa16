#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/check/check_judge.h"
#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"

namespace ddp::launcher {

/// What judge_nodes finds of the way between the nodes (sans-IO).
std::vector<CheckFinding> network_findings(const JobSpec& spec, const CheckResult& result);

/// A text whose advice stands behind its first ';', as the texts of the agent's refusals are worded.
std::pair<std::string, std::string> advice_apart(const std::string& text);

/// Whether only one of several hosts could be asked: then nothing is known of the network between them.
bool one_of_several(const CheckResult& result);

/// The way that the job would take, in words; empty: none was found. `result.network` holds one.
std::string network_reason(const CheckResult& result);

}  // namespace ddp::launcher
