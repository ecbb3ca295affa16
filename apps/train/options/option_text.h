#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::train {

/// Returns the command line without the program's name, in reverse order, as CLI11 takes it. --batch_size
/// becomes --batch-size, as in torchrun.
std::vector<std::string> reversed_arguments(int argc, const char* const* argv);

/// Parses "60", "60s", "500ms", "2m" or "1h"; no unit: seconds. Valid are 1 ms to 24 hours.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);
/// Returns the error text for a `text` that is no duration.
std::string no_duration(std::string_view text);

/// Parses "8", "64K", "1.5m" or "32MiB" (powers of 1024, letters of either case), as nccl-tests does. Valid
/// are 1 byte to 1024 GiB.
std::optional<std::size_t> parse_bytes(std::string_view text);

/// A check for CLI11: returns why `text` is not a number from `low` to `high`, or an empty string. `whole`
/// allows whole numbers only.
std::string range_error(const std::string& text, double low, double high, bool whole);

}  // namespace ddp::train
