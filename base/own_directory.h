#pragma once

#include <string>

#include "base/result.h"

namespace ddp {

/// Where the file of this very program lies, absolute and without a slash at its end: its companions lie
/// beside it. Errors: kSystem (no /proc).
Result<std::string> own_directory();

}  // namespace ddp
