#pragma once

#include <string>

namespace ddp {

/// Returns what `ddplaunch --version` prints: the version in the first line, then commit, compiler and
/// libraries.
std::string version_text();

}  // namespace ddp
