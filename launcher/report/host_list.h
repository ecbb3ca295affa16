#pragma once

#include <string>
#include <vector>

namespace ddp::launcher {

/// Returns "gpu01", "gpu01 and gpu02" or "gpu01, gpu02, gpu03, gpu04 and 12 more hosts".
std::string host_list(const std::vector<std::string>& hosts);

}  // namespace ddp::launcher
