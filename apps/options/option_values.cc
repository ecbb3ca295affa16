#include "apps/options/option_values.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>
#include <system_error>
#include <utility>

#include "base/format_text.h"
#include "base/parse_text.h"

namespace ddp {

namespace {

constexpr double kMostMilliseconds = 3.6e9;  // 1000 hours
constexpr double kMostBytes = 0x1p50;
constexpr double kUnreachable = 1e12;  // a message does not name such a bound

struct Unit {
  std::string_view name;
  double scale;
};
constexpr std::array kTimes{Unit{"", 1e3},  Unit{"ms", 1},    Unit{"s", 1e3},
                            Unit{"m", 6e4}, Unit{"min", 6e4}, Unit{"h", 3.6e6}};
constexpr std::array kSizes{Unit{"", 1},         Unit{"b", 1},       Unit{"k", 0x1p10},   Unit{"kb", 0x1p10},
                            Unit{"kib", 0x1p10}, Unit{"m", 0x1p20},  Unit{"mb", 0x1p20},  Unit{"mib", 0x1p20},
                            Unit{"g", 0x1p30},   Unit{"gb", 0x1p30}, Unit{"gib", 0x1p30}, Unit{"t", 0x1p40},
                            Unit{"tb", 0x1p40},  Unit{"tib", 0x1p40}};

/// Reads digits, which may have a fraction, and a unit.
std::optional<double> scaled(std::string_view text, std::span<const Unit> units) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || std::isdigit(static_cast<unsigned char>(text.front())) == 0)
    return std::nullopt;
  const std::string_view name(rest, static_cast<std::size_t>(end - rest));
  for (const Unit& unit : units)
    if (name == unit.name) return value * unit.scale;
  return std::nullopt;
}

std::string bound_text(double bound) {
  return format_text("%.16g", bound);
}

std::string size_text(std::uint64_t size) {
  std::string unit;
  for (const char larger : {'K', 'M', 'G'}) {
    if (size == 0 || size % 1024 != 0) break;
    size /= 1024;
    unit = larger;
  }
  return std::to_string(size) + unit;
}

}  // namespace

std::string duration_text(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + 's' : std::to_string(ms) + "ms";
}

std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  const auto value = scaled(text, kTimes);
  if (!value || *value > kMostMilliseconds) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(*value));
}

std::optional<std::chrono::milliseconds> parse_moment(std::string_view text, std::chrono::milliseconds now) {
  using namespace std::chrono;
  if (const auto before = parse_duration(text)) return now - *before;
  constexpr std::string_view kForm = "dddd-dd-ddTdd:dd:dd";
  if (text.size() <= kForm.size()) return std::nullopt;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool fits = kForm[i] == 'd' ? is_digits(text.substr(i, 1))
                                      : std::toupper(static_cast<unsigned char>(text[i])) == kForm[i];
    if (!fits) return std::nullopt;
  }
  const auto number = [&text](std::size_t at, std::size_t size) {
    return parse_number<int>(text.substr(at, size)).value_or(-1);
  };
  const year_month_day day{year(number(0, 4)), month(static_cast<unsigned>(number(5, 2))),
                           std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  const int clock[] = {number(11, 2), number(14, 2), number(17, 2)};
  if (!day.ok() || clock[0] > 23 || clock[1] > 59 || clock[2] > 60 || number(0, 4) < 1970)
    return std::nullopt;
  milliseconds time =
      sys_days(day).time_since_epoch() + hours(clock[0]) + minutes(clock[1]) + seconds(clock[2]);
  text.remove_prefix(kForm.size());
  if (text.front() == '.') {
    const std::size_t end = std::min(text.find_first_not_of("0123456789", 1), text.size());
    if (end == 1) return std::nullopt;
    std::string fraction(text.substr(1, std::min<std::size_t>(end - 1, 3)));
    fraction.resize(3, '0');
    time += milliseconds(parse_number<int>(fraction).value_or(0));
    text.remove_prefix(end);
  }
  if (text == "Z" || text == "z") return time;
  const bool offset = text.size() == 6 && (text[0] == '+' || text[0] == '-') && text[3] == ':' &&
                      is_digits(text.substr(1, 2)) && is_digits(text.substr(4, 2));
  if (!offset || number(1, 2) > 23 || number(4, 2) > 59) return std::nullopt;
  const minutes ahead = hours(number(1, 2)) + minutes(number(4, 2));
  return text[0] == '+' ? time - ahead : time + ahead;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const auto value = scaled(lower_case(text), kSizes);
  if (!value || *value > kMostBytes) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

OptionField text_into(std::string& field) {
  const auto read = [&field](const std::string& text) {
    field = text;
    return std::string();
  };
  return {read, [&field] { return field; }};
}

ReadValue texts_into(std::vector<std::string>& field) {
  return [&field](const std::string& text) {
    field.push_back(text);
    return std::string();
  };
}

OptionField directory_into(std::string& field) {
  const auto read = [&field](const std::string& text) {
    field = text;
    while (field.size() > 1 && field.ends_with('/'))
      field.pop_back();
    return std::string();
  };
  return {read, [&field] { return field; }};
}

OptionField time_into(std::chrono::milliseconds& field, std::chrono::milliseconds least, bool zero_is_off) {
  const auto read = [=, &field](const std::string& text) -> std::string {
    const auto time = parse_duration(text);
    if (!time && scaled(text, kTimes))
      return " is too long; at most " +
             duration_text(std::chrono::milliseconds(static_cast<std::int64_t>(kMostMilliseconds)));
    if (!time) return ": give a time like 500ms, 15s, 2m or 1h";
    if (*time < least && !(zero_is_off && text == "0"))
      return " is too short; at least " + std::to_string(least.count()) + "ms";
    field = *time;
    return "";
  };
  return {read, [&field] { return duration_text(field); }};
}

OptionField size_into(std::size_t& field, std::size_t least) {
  const auto read = [=, &field](const std::string& text) -> std::string {
    const auto size = parse_size(text);
    if (!size || *size < least) return ": give a size like 8, 64K, 1.5M or 2G";
    field = static_cast<std::size_t>(*size);
    return "";
  };
  return {read, [&field] { return size_text(field); }};
}

ReadValue checked(bool (*is_valid)(std::string_view text), std::string advice, ReadValue read) {
  return [is_valid, advice = std::move(advice), read = std::move(read)](const std::string& text) {
    return is_valid(text) ? read(text) : advice;
  };
}

bool parse_number(std::string_view text, long long& field) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), field);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_number(std::string_view text, double& field) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), field);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(field);
}

std::string number_advice(double low, double high, bool whole, std::optional<double> number) {
  std::string text = whole ? ": give a whole number" : ": give a number";
  if (high < kUnreachable) return text + " from " + bound_text(low) + " to " + bound_text(high);
  if (number && *number > high) return text + " up to " + bound_text(high);
  if (low > -kUnreachable && (number || low != 0)) return text + " of at least " + bound_text(low);
  return text;
}

std::string number_text(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

}  // namespace ddp
