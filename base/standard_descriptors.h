#pragma once

#include <string>

#include "base/result.h"

namespace ddp {

/// Opens /dev/null as each of the descriptors 0, 1 and 2 that this process was started without. Otherwise the
/// next files, sockets or timers would get these numbers and receive text for the terminal. Call it first in
/// main, before anything is opened.
void fill_standard_descriptors();
/// Returns whether fill_standard_descriptors had to open `fd`. Anything written to it is lost.
bool was_closed(int fd);

/// Writes all of `text` to standard output, which must get nothing else. A partial result must not pass for a
/// complete one, so an incomplete write is an error. Blocks. Error: kSystem, the output is full or was closed
/// from the start (fill_standard_descriptors).
Result<> print_result(const std::string& text);

}  // namespace ddp
