#include "apps/ddplaunch/options/option_readers.h"

#include <arpa/inet.h>  // inet_pton: text to bytes, no socket
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>

#include "remote/hosts/host_range.h"

namespace ddp {

namespace {

constexpr std::size_t kMaxInterfaceName = 15;  // IFNAMSIZ without the zero
constexpr std::size_t kMaxJobId = 64;
constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 50;
constexpr unsigned long long kMaxRank = 10'000'000;  // more than any job; keeps ranges in 32 bits

// Calls `take` with each word between commas. Returns false if it refuses a word.
template <class Take>
bool each_word(std::string_view list, Take take) {
  for (std::size_t at = 0;;) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (!take(list.substr(at, end - at))) return false;
    if (end == list.size()) return true;
    at = end + 1;
  }
}

}  // namespace

std::optional<std::chrono::milliseconds> read_duration(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view unit = text.substr(digits);
  const auto number = remote::whole_number(text.substr(0, digits), 3'600'000'000ULL);
  if (!number) return std::nullopt;
  long long scale = 0;
  if (unit == "ms") scale = 1;
  if (unit.empty() || unit == "s") scale = 1'000;
  if (unit == "m" || unit == "min") scale = 60'000;
  if (unit == "h") scale = 3'600'000;
  const std::chrono::milliseconds value(static_cast<long long>(*number) * scale);
  if (scale == 0 || value > std::chrono::hours(1000)) return std::nullopt;
  return value;
}

void read_time(const std::string& text, std::string_view option, std::chrono::milliseconds least,
               std::chrono::milliseconds& value, Diagnostics& diagnostics) {
  if (text.empty()) return;
  const auto duration = read_duration(text);
  if (!duration) {
    diagnostics.fail(std::string(option) + ' ' + text + ": give a time like 500ms, 15s, 2m or 1h");
  } else if (*duration < least) {
    diagnostics.fail(std::string(option) + ' ' + text + " is too short; at least " +
                     std::to_string(least.count()) + "ms");
  } else {
    value = *duration;
  }
}

std::optional<launcher::ProcsPerNode> read_procs(std::string_view text) {
  using Kind = launcher::ProcsPerNode::Kind;
  if (text == "auto") return launcher::ProcsPerNode{Kind::kAuto, 0};
  if (text == "gpu") return launcher::ProcsPerNode{Kind::kGpu, 0};
  if (text == "cpu") return launcher::ProcsPerNode{Kind::kCpu, 0};
  const auto number = remote::whole_number(text, 65'535);
  if (!number || *number == 0) return std::nullopt;
  return launcher::ProcsPerNode{Kind::kNumber, static_cast<int>(*number)};
}

std::optional<std::pair<std::uint16_t, std::uint16_t>> read_port_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto low = remote::whole_number(text.substr(0, dash), 65'535);
  const auto high = remote::whole_number(text.substr(dash + 1), 65'535);
  if (!low || !high || *low == 0 || *low > *high) return std::nullopt;
  return std::pair{static_cast<std::uint16_t>(*low), static_cast<std::uint16_t>(*high)};
}

std::optional<std::uint64_t> read_size(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string_view unit = text.substr(digits);
  for (const std::string_view end : {"iB", "B"}) {
    if (unit.size() > end.size() && unit.ends_with(end)) {
      unit.remove_suffix(end.size());
      break;
    }
  }
  const auto number = remote::whole_number(text.substr(0, digits), kMaxSize);
  if (!number) return std::nullopt;
  int shift = 0;
  if (unit == "K" || unit == "k") shift = 10;
  if (unit == "M") shift = 20;
  if (unit == "G") shift = 30;
  if (unit == "T") shift = 40;
  if ((shift == 0 && !unit.empty()) || *number > kMaxSize >> shift) return std::nullopt;
  return *number << shift;
}

std::optional<launcher::RankRanges> read_rank_ranges(std::string_view text) {
  launcher::RankRanges ranges;
  if (text == "all") return ranges;
  const bool good = each_word(text, [&](std::string_view word) {
    const std::size_t dash = std::min(word.find('-'), word.size());
    const auto low = remote::whole_number(word.substr(0, dash), kMaxRank);
    const auto high = dash == word.size() ? low : remote::whole_number(word.substr(dash + 1), kMaxRank);
    if (!low || !high || *low > *high) return false;
    ranges.emplace_back(static_cast<std::uint32_t>(*low), static_cast<std::uint32_t>(*high));
    return true;
  });
  if (!good) return std::nullopt;
  std::sort(ranges.begin(), ranges.end());
  launcher::RankRanges joined;
  for (const auto& range : ranges) {
    if (!joined.empty() && range.first <= joined.back().second + 1) {
      joined.back().second = std::max(joined.back().second, range.second);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

std::optional<launcher::StreamChoice> read_stream_choice(std::string_view text) {
  // Accept one digit only: "03" may be a slip for "0:3".
  const auto streams_of = [](std::string_view digit) {
    return digit.size() == 1 ? remote::whole_number(digit, 3) : std::nullopt;
  };
  launcher::StreamChoice choice;
  if (const auto all = streams_of(text)) {
    choice.others = static_cast<std::uint8_t>(*all);
    return choice;
  }
  const bool good = each_word(text, [&](std::string_view word) {
    const std::size_t colon = word.find(':');
    if (colon == std::string_view::npos) return false;
    const auto rank = remote::whole_number(word.substr(0, colon), kMaxLocalRank);
    const auto streams = streams_of(word.substr(colon + 1));
    if (!rank || !streams) return false;
    return choice.by_local.emplace(static_cast<int>(*rank), static_cast<std::uint8_t>(*streams)).second;
  });
  return good ? std::optional(choice) : std::nullopt;
}

bool is_address_range(std::string_view text) {
  const std::size_t slash = std::min(text.find('/'), text.size());
  const std::string address(text.substr(0, slash));
  // Accept the same texts as AddressFilter: a text that fails there would admit no address.
  in6_addr bytes{};
  const bool v4 = ::inet_pton(AF_INET, address.c_str(), &bytes) == 1;
  return (v4 || ::inet_pton(AF_INET6, address.c_str(), &bytes) == 1) &&
         address.find('\0') == std::string::npos &&
         (slash == text.size() || remote::whole_number(text.substr(slash + 1), v4 ? 32 : 128).has_value());
}

bool is_network(std::string_view text) {
  if (text.find('/') != std::string_view::npos) return is_address_range(text);
  return !text.empty() && text.size() <= kMaxInterfaceName && !remote::is_ipv4(text) &&
         !remote::is_ipv6(text) && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isgraph(c) != 0 && c != ',';
         });
}

bool is_job_id(std::string_view text) {
  return !text.empty() && text.size() <= kMaxJobId &&
         std::isalnum(static_cast<unsigned char>(text.front())) != 0 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
         });
}

std::string absolute_path(std::string_view path, std::string_view base) {
  std::string result(path.starts_with('/') ? std::string_view() : base);
  std::size_t at = 0;
  while (at < path.size()) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (!part.empty() && part != ".") {
      if (!result.ends_with('/')) result += '/';
      result += part;
    }
    at = end + 1;
  }
  return result.empty() ? "/" : result;
}

}  // namespace ddp
