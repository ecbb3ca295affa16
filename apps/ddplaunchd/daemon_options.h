#pragma once

#include <vector>

#include "apps/options/option.h"

namespace ddp {

/// Opens the help of ddplaunchd.
inline constexpr char kDaemonUsage[] =
    "usage: ddplaunchd --listen [[ADDRESS:]PORT] [--token-file FILE]\n"
    "       ddplaunchd --new-token [FILE]\n"
    "       ddplaunchd --stdio | --fits … | --verify … | --version | --help\n"
    "The node agent of ddplaunch, which starts it on every node over SSH or through a daemon (--listen).\n";

/// Returns the options of ddplaunchd. The first group is the listener's: ddplaunch-listen reads those.
std::vector<OptionGroup> daemon_option_groups();

}  // namespace ddp
