#pragma once

#include <string_view>
#include <vector>

#include "remote/hosts/diagnostic.h"
#include "remote/hosts/host.h"

namespace ddp::remote {

/// DeepSpeed's --include and --exclude: `host:0,2@host2`, ranges allowed in names (gpu[01-04]) and slots
/// (0-3). Empty text: option not given. Order of the hosts stays. A host that keeps some of its slots has
/// `slots` = their number and `devices` = their devices: slot i is gpus[i] when the hostfile gives gpus=,
/// else device i. Entries for one host add up; a host named without slots means all of it. Errors, all at
/// once: both given, a host that is not in `hosts`, a slot that it does not have, nothing left.
Validated<std::vector<Host>> filter_hosts(std::vector<Host> hosts, std::string_view include,
                                          std::string_view exclude);

}  // namespace ddp::remote
