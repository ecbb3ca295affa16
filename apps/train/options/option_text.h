#pragma once

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::train {

/// The command line without the program's name, in reverse, as CLI11 takes it; --batch_size is --batch-size,
/// as in torchrun.
std::vector<std::string> reversed_arguments(int argc, const char* const* argv);

/// "60", "60s", "500ms", "2m", "1h"; no unit: seconds. From 1 ms to 24 hours.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);
/// What to say of a text that is none.
std::string no_duration(std::string_view text);

/// "8", "64K", "1.5m", "32MiB" (powers of 1024, letters of either case), as nccl-tests reads them; from 1
/// byte to 1024 GiB.
std::optional<std::size_t> parse_bytes(std::string_view text);

/// A check for CLI11, beside its Range, which lets "nan" through: no comparison with it is true. Empty: a
/// number of finite size, or no number at all, of which another check says more.
inline std::string finite_check(const std::string& text) {
  if (std::isfinite(std::strtod(text.c_str(), nullptr))) return "";
  return "\"" + text + "\" is no finite number";
}

}  // namespace ddp::train
