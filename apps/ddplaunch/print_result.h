#pragma once

#include <string>

#include "base/result.h"

namespace ddp {

/// Writes all of `text` to standard output, which holds nothing else: who reads a result from there must not
/// take half of it, or none, for the whole. Blocks. Errors: kSystem, when it is full or was closed from the
/// beginning (fill_standard_descriptors).
Result<> print_result(const std::string& text);

}  // namespace ddp
