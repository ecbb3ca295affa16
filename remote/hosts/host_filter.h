#pragma once

#include <string_view>
#include <vector>

#include "remote/hosts/host.h"

namespace ddp::remote {

/// Applies DeepSpeed's --include and --exclude: `host:0,2@host2`, with ranges in names (gpu[01-04]) and slots
/// (0-3). An empty text means that the option is not given. The order of the hosts stays. A host that keeps
/// some of its slots has `slots` = their number and `devices` = their devices. Slot i is gpus[i] when the
/// hostfile gives gpus=, else device i. Entries for one host add up. A host named without slots means the
/// whole host. Errors, all at once: both options given, a host that is not in `hosts`, a slot that it does
/// not have, no host left.
Validated<std::vector<Host>> filter_hosts(std::vector<Host> hosts, std::string_view include,
                                          std::string_view exclude);

}  // namespace ddp::remote
