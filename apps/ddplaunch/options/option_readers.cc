#include "apps/ddplaunch/options/option_readers.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

#include "base/ip_address.h"
#include "base/text.h"
#include "launcher/lines/line_watch.h"
#include "remote/hosts/host.h"
#include "remote/hosts/shell_command.h"

namespace ddp {

using rendezvous::ProcsRule;

namespace {

constexpr std::size_t kMaxInterfaceName = 15;  // IFNAMSIZ without the zero
constexpr std::size_t kMaxJobId = 64;
constexpr unsigned long long kMaxRank = 10'000'000;  // more than any job; keeps ranges in 32 bits
constexpr unsigned kMaxLocalRank = 65'535;
constexpr double kMaxBandwidth = 1e9;
constexpr std::uint64_t kSmallestPart = 4096;  // a smaller limit would fill the directory with parts
constexpr unsigned long long kMostParts = 1'000'000;

/// Reads LOW and HIGH with a character between them, or one number that is both.
std::optional<std::pair<std::uint64_t, std::uint64_t>> read_range(std::string_view text, char between,
                                                                  std::uint64_t most) {
  const std::size_t at = std::min(text.find(between), text.size());
  const auto low = whole_number(text.substr(0, at), most);
  const auto high = at == text.size() ? low : whole_number(text.substr(at + 1), most);
  if (!low || !high || *low > *high) return std::nullopt;
  return std::pair<std::uint64_t, std::uint64_t>{*low, *high};
}

}  // namespace

const std::vector<std::pair<std::string, ProcsRule>>& procs_words() {
  static const std::vector<std::pair<std::string, ProcsRule>> words{
      {"auto", ProcsRule::kAuto}, {"gpu", ProcsRule::kGpu}, {"cpu", ProcsRule::kCpu}};
  return words;
}

ReadValue procs_into(rendezvous::ProcsWanted& field) {
  return [&field](const std::string& text) -> std::string {
    const auto& words = procs_words();
    const auto word = std::ranges::find(words, text, [](const auto& each) { return each.first; });
    const auto number = whole_number(text, 65'535);
    if (word == words.end() && (!number || *number == 0))
      return ": give a whole number from 1 to 65535, or " + join_alternatives(words_of(words));
    field.rule = word == words.end() ? ProcsRule::kNumber : word->second;
    field.number = static_cast<int>(number.value_or(0));
    return "";
  };
}

std::optional<NodeCounts> read_node_counts(std::string_view text) {
  const auto range = read_range(text, ':', remote::kMaxHosts);
  if (!range || range->first == 0) return std::nullopt;
  return NodeCounts{range->first, range->second};
}

std::string nnodes_text(const NodeCounts& counts) {
  return "--nnodes " + std::to_string(counts.min) +
         (counts.min < counts.max ? ':' + std::to_string(counts.max) : std::string());
}

std::string host_problem(std::string_view host) {
  if (const std::size_t scheme = host.find("://"); scheme != std::string_view::npos) {
    const std::string_view rest = host.substr(scheme + 3);
    return ": this is a URL; omit " + std::string(host.substr(0, scheme + 3)) +
           (rest.empty() ? "" : ": " + std::string(rest.substr(0, rest.find('/'))));
  }
  const bool good = !host.empty() && host.size() <= 255 && host.find_first_of(" \t/,") == std::string::npos;
  return good ? "" : ": give the name or address of node 0";
}

ReadValue endpoint_into(std::optional<RendezvousEndpoint>& field) {
  return [&field](const std::string& text) -> std::string {
    if (text.find("://") != std::string::npos) return host_problem(text);
    const auto parts = split_endpoint(text);
    if (!parts || (text.starts_with('[') && !remote::is_ipv6(parts->host)))
      return ": write an IPv6 address and a port as [fd09::1]:29400";
    if (parts->host.find(':') != std::string::npos && !remote::is_ipv6(parts->host))
      return ": give HOST:PORT of node 0, with an IPv6 address in brackets: [fd09::1]:29400";
    if (parts->host.empty() && parts->port)
      return ": the host before the : is missing; give the name or address of node 0";
    if (std::string problem = host_problem(parts->host); !problem.empty()) return problem;
    RendezvousEndpoint endpoint{text, parts->host, std::nullopt};
    if (parts->port) {
      if (parts->port->empty())
        return ": the port behind the : is missing; without the : it is " + std::to_string(kEndpointPort);
      const auto port = whole_number(*parts->port, kMaxPort);
      if (!port) return ": " + *parts->port + " is no port; ports are from 1 to 65535";
      endpoint.port = static_cast<std::uint16_t>(*port);
    }
    field = std::move(endpoint);
    return "";
  };
}

std::optional<std::pair<std::uint16_t, std::uint16_t>> read_port_range(std::string_view text) {
  const auto range = read_range(text, '-', kMaxPort);
  if (!range || range->first == 0 || text.find('-') == std::string_view::npos) return std::nullopt;
  return std::pair{static_cast<std::uint16_t>(range->first), static_cast<std::uint16_t>(range->second)};
}

std::optional<launcher::RankRanges> read_rank_ranges(std::string_view text) {
  launcher::RankRanges ranges;
  if (text == "all") return ranges;
  for (const std::string_view word : split(text, ',')) {
    const auto range = read_range(word, '-', kMaxRank);
    if (!range) return std::nullopt;
    ranges.emplace_back(static_cast<std::uint32_t>(range->first), static_cast<std::uint32_t>(range->second));
  }
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

std::optional<std::vector<int>> read_local_ranks(std::string_view text) {
  const auto ranges = read_rank_ranges(text);
  if (!ranges || (!ranges->empty() && ranges->back().second > kMaxLocalRank)) return std::nullopt;
  std::vector<int> ranks;
  for (const auto& [first, last] : *ranges) {
    for (std::uint32_t rank = first; rank <= last; ++rank)
      ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::optional<launcher::StreamChoice> read_stream_choice(std::string_view text) {
  // Accept one digit only: "03" may be a slip for "0:3".
  const auto streams_of = [](std::string_view digit) {
    return digit.size() == 1 ? whole_number(digit, 3) : std::nullopt;
  };
  launcher::StreamChoice choice;
  if (const auto all = streams_of(text)) {
    choice.others = static_cast<std::uint8_t>(*all);
    return choice;
  }
  for (const std::string_view word : split(text, ',')) {
    const std::size_t colon = std::min(word.find(':'), word.size());
    const auto rank = whole_number(word.substr(0, colon), kMaxLocalRank);
    const auto streams = streams_of(word.substr(std::min(colon + 1, word.size())));
    if (!rank || !streams ||
        !choice.by_local.emplace(static_cast<int>(*rank), static_cast<std::uint8_t>(*streams)).second)
      return std::nullopt;
  }
  return choice;
}

bool is_address_range(std::string_view text) {
  return text.find('%') == std::string_view::npos && parse_ip_network(text).has_value();
}

bool is_network(std::string_view text) {
  if (text.find('/') != std::string_view::npos) return is_address_range(text);
  return !text.empty() && text.size() <= kMaxInterfaceName && !remote::is_ipv4(text) &&
         !remote::is_ipv6(text) &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isgraph(c) != 0 && c != ','; });
}

bool is_job_id(std::string_view text) {
  return !text.empty() && text.size() <= kMaxJobId &&
         std::isalnum(static_cast<unsigned char>(text.front())) != 0 &&
         std::ranges::all_of(
             text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; });
}

bool is_bandwidth(std::string_view text) {
  const auto value = parse_number<double>(text);
  return value && *value > 0 && *value <= kMaxBandwidth;
}

ReadValue listen_into(std::string& address, std::uint16_t& port) {
  return [&](const std::string& text) -> std::string {
    auto parts = split_endpoint(text);
    const auto number = parse_number<std::uint16_t>(parts ? parts->port.value_or("") : "");
    if (!number || parts->host.empty()) return ": give ADDRESS:PORT, such as 127.0.0.1:8080 or [::1]:8080";
    address = std::move(parts->host);
    port = *number;
    return "";
  };
}

ReadValue path_into(std::string& field, std::string base) {
  return any_text(
      [&field, base = std::move(base)](const std::string& text) { field = absolute_path(text, base); });
}

ReadValue program_into(std::string& field, std::string base) {
  return any_text([&field, base = std::move(base)](const std::string& text) {
    field = text.find('/') == std::string::npos ? text : absolute_path(text, base);
  });
}

ReadValue command_into(std::vector<std::string>& field) {
  return [&field](const std::string& text) -> std::string {
    auto words = remote::split_words(text);
    if (!words) return ": " + words.error().text;
    if (words->empty()) return ": it names no program";
    field = std::move(*words);
    return "";
  };
}

ReadValue hooks_into(std::vector<launcher::Hook>& field) {
  return [&field](const std::string& text) -> std::string {
    const std::size_t equals = std::min(text.find('='), text.size());
    launcher::Hook hook{text.substr(0, equals), text.substr(std::min(equals + 1, text.size()))};
    const bool known = std::ranges::count(launcher::Hook::kEvents, hook.event) > 0;
    if (!known || hook.command.find_first_not_of(' ') == std::string::npos) {
      std::string advice = ": give EVENT=COMMAND, and as EVENT ";
      for (const char* event : launcher::Hook::kEvents)
        advice += (event == launcher::Hook::kEvents[0] ? "" : ", ") + std::string(event);
      return advice;
    }
    field.push_back(std::move(hook));
    return "";
  };
}

ReadValue watch_into(std::vector<launcher::WatchRule>& field) {
  return [&field](const std::string& text) -> std::string {
    auto rule = launcher::parse_watch_rule(text);
    if (!rule) return ": " + rule.error().text;
    if (field.size() == launcher::LinePatterns::kMost)
      return ": at most " + std::to_string(launcher::LinePatterns::kMost) +
             " rules are possible; join patterns with |";
    launcher::LinePatterns together;
    for (const launcher::WatchRule& earlier : field)
      (void)together.add(earlier.pattern);
    if (const auto added = together.add(rule->pattern); !added) return ": " + added.error().text;
    field.push_back(std::move(*rule));
    return "";
  };
}

ReadValue log_limit_into(launcher::OutputOptions& output) {
  return [&output](const std::string& text) -> std::string {
    const std::size_t colon = std::min(text.find(':'), text.size());
    const auto size = parse_size(std::string_view(text).substr(0, colon));
    const bool limits_parts = colon < text.size();
    const auto parts = limits_parts ? whole_number(std::string_view(text).substr(colon + 1), kMostParts) : 0;
    // No limit of the size means no parts.
    if (!size || !parts || (limits_parts && (*parts == 0 || *size == 0)))
      return ": give a size like 500K, 64M or 2G, or with the number of parts to keep: 64M:4";
    if (*size != 0 && *size < kSmallestPart) return " is too small; at least 4K, or 0 for no limit";
    output.log_max_size = *size;
    output.log_max_parts = static_cast<std::uint32_t>(*parts);
    return "";
  };
}

std::string absolute_path(std::string_view path, std::string_view base) {
  std::string result(path.starts_with('/') ? std::string_view() : base);
  for (const std::string_view part : split(path, '/')) {
    if (part.empty() || part == ".") continue;
    if (!result.ends_with('/')) result += '/';
    result += part;
  }
  return result.empty() ? "/" : result;
}

}  // namespace ddp
