#include "apps/ddplaunch/operate/log_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "base/text.h"
#include "base/unique_fd.h"

namespace ddp {
namespace {

/// The bytes of short_attempts.txt that are read at a time. The files of an attempt have 64 KiB at most.
constexpr std::size_t kPartBytes = 4u << 20;

/// Reads "==> attempt_7/rank_00000.stderr, 512 bytes <==". `size`: the number in it.
std::optional<LogKey> key_of_head(std::string_view line, std::size_t& size) {
  constexpr std::string_view kBegin = "==> attempt_";
  constexpr std::string_view kEnd = " bytes <==";
  if (!line.starts_with(kBegin) || !line.ends_with(kEnd)) return {};
  line.remove_prefix(kBegin.size());
  line.remove_suffix(kEnd.size());
  const std::size_t slash = line.find('/');
  const std::size_t comma = line.rfind(", ");
  if (slash == std::string_view::npos || comma == std::string_view::npos || comma < slash) return {};
  const auto attempt = parse_number<std::uint32_t>(line.substr(0, slash));
  const auto bytes = parse_number<std::size_t>(line.substr(comma + 2));
  if (!attempt || !bytes) return {};
  size = *bytes;
  return key_of(*attempt, line.substr(slash + 1, comma - slash - 1));
}

}  // namespace

std::optional<LogKey> key_of(std::uint32_t attempt, std::string_view name) {
  if (!name.starts_with("rank_")) return {};
  name.remove_prefix(5);
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return {};
  const auto rank = parse_number<std::uint32_t>(name.substr(0, dot));
  name.remove_prefix(dot + 1);
  const std::size_t end = std::min(name.find('.'), name.size());
  LogKey key{attempt, rank.value_or(0), std::string(name.substr(0, end)), 0};
  if (!rank || (key.stream != "stdout" && key.stream != "stderr")) return {};
  if (end < name.size()) {
    const auto part = parse_number<std::uint32_t>(name.substr(end + 1));
    if (!part) return {};
    key.part = *part;
  }
  return key;
}

std::vector<ShortLog> read_short_attempts(const std::string& directory, std::uint64_t& read) {
  std::vector<ShortLog> logs;
  const UniqueFd fd(
      ::open((directory + "/short_attempts.txt").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return logs;
  std::string part(kPartBytes, '\0');
  for (;;) {
    const ssize_t count = ::pread(fd.get(), part.data(), part.size(), static_cast<off_t>(read));
    const std::string_view text(part.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    std::size_t at = 0;
    for (;;) {
      const std::size_t end = text.find('\n', at);
      if (end == std::string_view::npos) break;
      std::size_t size = 0;
      const auto key = key_of_head(text.substr(at, end - at), size);
      if (size > text.size() - end - 1) break;  // not all of it is there
      if (key) logs.push_back({*key, std::string(text.substr(end + 1, size))});
      at = end + 1 + size;
    }
    if (at == 0) return logs;
    read += at;
  }
}

}  // namespace ddp
