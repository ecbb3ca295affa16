#pragma once

#include <set>
#include <string>
#include <vector>

namespace ddp::launcher {

/// Returns "gpu01", "gpu01 and gpu02" or "gpu01, gpu02, gpu03, gpu04 and 12 more hosts".
std::string host_list(const std::set<std::string>& hosts);

/// Returns sorted numbers as "0-3,7"; at most 8 parts, then ",…".
std::string rank_set(std::vector<int> ranks);

}  // namespace ddp::launcher
