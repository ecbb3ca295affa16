#pragma once

namespace ddp {

/// Opens /dev/null as each of the descriptors 0, 1 and 2 that we were started without. Otherwise the next
/// files, sockets or timers would get these numbers, and what is meant for the terminal would be written into
/// them. To be called first in main, before anything is opened.
void fill_standard_descriptors();
/// Whether that had to open `fd`: what is written there is lost, and nobody wants it to be.
bool was_closed(int fd);

}  // namespace ddp
