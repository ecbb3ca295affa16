#pragma once

#include <string>

#include "launcher/job/env_filter.h"

namespace ddp::launcher {

/// Returns why `program`, an existing executable file, cannot start in `cwd`: its first line names an
/// interpreter that does not exist, or a program for env(1) that PATH of `env` lacks. The text is that of a
/// job that tries. Empty: it can start, or is no script. Reads the file's first bytes.
std::string interpreter_trouble(const std::string& program, const EnvVars& env, const std::string& cwd);

}  // namespace ddp::launcher
