#pragma once

#include <cmath>
#include <cstdlib>
#include <string>

namespace ddp::train {

/// A check for CLI11, beside its Range, which lets "nan" through: no comparison with it is true. Empty: a
/// number of finite size, or no number at all, of which another check says more.
inline std::string finite_check(const std::string& text) {
  if (std::isfinite(std::strtod(text.c_str(), nullptr))) return "";
  return "\"" + text + "\" is no finite number";
}

}  // namespace ddp::train
