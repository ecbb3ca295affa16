#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp {

/// Place of a file of a worker's output: attempt, rank, stream ("stderr" < "stdout"), part.
struct LogKey {
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::string stream;
  std::uint32_t part = 0;
  auto operator<=>(const LogKey&) const = default;
};

/// Reads "rank_00003.stdout.1". Unset: it is no such name.
std::optional<LogKey> key_of(std::uint32_t attempt, std::string_view name);

/// A file of an attempt that was moved into short_attempts.txt (docs/users/output.md).
struct ShortLog {
  LogKey key;
  std::string text;
};

/// Returns the files that were moved there behind the byte `read`, and moves `read` behind them. Blocks.
std::vector<ShortLog> read_short_attempts(const std::string& directory, std::uint64_t& read);

}  // namespace ddp
