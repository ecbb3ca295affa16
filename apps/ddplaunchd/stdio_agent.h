#pragma once

#include "launcher/keeper/keeper.h"

namespace ddp {

/// The agent of one job over this process's stdin and stdout (docs/protocol.md, Bootstrap). Returns the exit
/// code. Runs in the process that the keeper has forked; threads are still allowed to come, none has.
int run_stdio_agent(launcher::KeeperLink& keeper);

}  // namespace ddp
