#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/ddplaunch/operate/operate_options.h"
#include "apps/ddplaunch/options/options.h"

namespace ddp {

/// Ends what is left of a job on its hosts, prints it, and returns the exit code.
using CleanHosts = std::function<int(const RunJob& job)>;

/// Carries out a verb about jobs that run or ran (docs/users/operate.md), and returns the exit code. `args`
/// are all arguments of the program.
int operate(OperateVerb verb, const std::vector<std::string>& args, const ProcessContext& context,
            const CleanHosts& clean_hosts);

}  // namespace ddp
