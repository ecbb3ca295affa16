#pragma once

#include <string>

namespace ddp {

/// Whether `host`, a name or a numeric address, is this machine: one of its addresses, or its name. Asks the
/// name service and may wait for it; a name that cannot be resolved is another machine's.
bool is_own_address(const std::string& host);
/// Whether it can only be this machine: "localhost", 127.x.y.z, ::1. Looks nothing up.
bool is_loopback_address(const std::string& host);

}  // namespace ddp
