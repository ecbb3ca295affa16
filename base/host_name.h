#pragma once

#include <string>

namespace ddp {

/// Returns the name of this host as gethostname gives it; empty if the kernel refuses.
std::string host_name();

}  // namespace ddp
