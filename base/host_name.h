#pragma once

#include <limits.h>
#include <unistd.h>

#include <string>

namespace ddp {

/// Returns the name of this host as gethostname gives it; empty if the kernel refuses.
inline std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace ddp
