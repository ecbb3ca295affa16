#include "apps/train/options/option_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace ddp::train {

std::vector<std::string> reversed_arguments(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  for (std::string& word : words) {
    if (!word.starts_with("--")) continue;
    std::replace(word.begin(),
                 word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size())), '_', '-');
  }
  std::reverse(words.begin(), words.end());
  return words;
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  static const std::map<std::string_view, double> kUnits{
      {"", 1e3}, {"s", 1e3}, {"ms", 1}, {"m", 6e4}, {"h", 3.6e6}};
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc()) return std::nullopt;
  const auto unit = kUnits.find(text.substr(static_cast<std::size_t>(end - text.data())));
  if (unit == kUnits.end()) return std::nullopt;
  const double ms = value * unit->second;
  if (!(ms >= 1 && ms <= 8.64e7)) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(ms));
}

std::string no_duration(std::string_view text) {
  return "\"" + std::string(text) + "\" is not a duration; write for example 500ms, 60s or 2m (1ms to 24h)";
}

std::string range_error(const std::string& text, double low, double high, bool whole) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool number = end != text.c_str() && *end == '\0' && std::isfinite(value);
  if (number && low <= value && value <= high && (!whole || value == std::floor(value))) return "";
  char range[96];
  std::snprintf(range, sizeof range, "number from %.16g to %.16g", low, high);
  return "\"" + text + "\" is not a " + (whole ? "whole " : "") + range;
}

std::optional<std::size_t> parse_bytes(std::string_view text) {
  static const std::map<std::string_view, double> kUnits{
      {"", 1},        {"k", 0x1p10},   {"kb", 0x1p10}, {"kib", 0x1p10}, {"m", 0x1p20},
      {"mb", 0x1p20}, {"mib", 0x1p20}, {"g", 0x1p30},  {"gb", 0x1p30},  {"gib", 0x1p30}};
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc()) return std::nullopt;
  std::string letters(text.substr(static_cast<std::size_t>(end - text.data())));
  std::transform(letters.begin(), letters.end(), letters.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const auto unit = kUnits.find(letters);
  if (unit == kUnits.end()) return std::nullopt;
  const double bytes = value * unit->second;
  if (!(bytes >= 1 && bytes <= 0x1p40)) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

}  // namespace ddp::train
