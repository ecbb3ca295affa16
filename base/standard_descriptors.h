#pragma once

#include <string>

#include "base/result.h"

namespace ddp {

/// Opens /dev/null as each of the descriptors 0, 1 and 2 that we were started without. Otherwise the next
/// files, sockets or timers would get these numbers, and what is meant for the terminal would be written into
/// them. To be called first in main, before anything is opened.
void fill_standard_descriptors();
/// Whether that had to open `fd`: what is written there is lost, and nobody wants it to be.
bool was_closed(int fd);

/// Writes all of `text` to standard output, which holds nothing else: who reads a result from there must not
/// take half of it, or none, for the whole. Blocks. Errors: kSystem, when it is full or was closed from the
/// beginning (fill_standard_descriptors).
Result<> print_result(const std::string& text);

}  // namespace ddp
