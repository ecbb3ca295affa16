#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace ddp::launcher {

/// `bytes` random bytes of the kernel's as hexadecimal digits, for names that nobody can guess. kSystem when
/// the kernel has none yet.
Result<std::string> random_text(std::size_t bytes);

}  // namespace ddp::launcher
