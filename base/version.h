#pragma once

#include <string_view>

namespace ddp {

/// "0.1.0": what --version prints, and what the agents on the nodes must match.
std::string_view version();

}  // namespace ddp
