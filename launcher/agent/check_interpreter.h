#pragma once

#include <string>

#include "launcher/job/env_filter.h"

namespace ddp::launcher {

/// Why `program`, an executable file that is there, cannot start in `cwd` all the same: its first line asks
/// for an interpreter that does not exist, or has env(1) look for one that PATH of `env` does not have. In
/// the words of a job that tries. Empty: it starts, or is no script. Reads the file's first bytes.
std::string interpreter_trouble(const std::string& program, const EnvVars& env, const std::string& cwd);

}  // namespace ddp::launcher
