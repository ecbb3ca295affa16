#pragma once

#include <string>

#include "base/error.h"

namespace ddp {

/// Why execve(path) failed with `err` in working directory `cwd` (empty: ours), looked up after the event:
/// "No such file" of an existing script means its interpreter, for instance. Code kExec, sys = err. May read
/// the first bytes of the file.
Error exec_error(int err, const std::string& path, const std::string& cwd);

}  // namespace ddp
