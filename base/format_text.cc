#include "base/format_text.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "base/parse_text.h"

namespace ddp {
namespace {

const char* begin_of(TextTable::Colour colour) {
  switch (colour) {
    case TextTable::Colour::kNone:
      return "";
    case TextTable::Colour::kGood:
      return "\x1b[32m";
    case TextTable::Colour::kDoubtful:
      return "\x1b[33m";
    case TextTable::Colour::kBad:
      return "\x1b[31m";
  }
  return "";
}

}  // namespace

std::string format_text(const char* format, ...) {
  std::string text;
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, arguments);
  if (size > 0) {
    text.resize(static_cast<std::size_t>(size));
    std::vsnprintf(text.data(), text.size() + 1, format, again);
  }
  va_end(again);
  va_end(arguments);
  return text;
}

std::string format_duration(std::chrono::nanoseconds time) {
  const std::int64_t ms = (time.count() + 500'000) / 1'000'000;
  if (ms < 1'000) return std::to_string(ms) + " ms";
  if (ms % 3'600'000 == 0) return std::to_string(ms / 3'600'000) + " h";
  if (ms >= 120'000 && ms % 60'000 == 0) return std::to_string(ms / 60'000) + " min";
  const std::int64_t tenths = (ms + 50) / 100;
  const std::string whole = std::to_string(tenths / 10);
  return (tenths % 10 == 0 ? whole : whole + "." + std::to_string(tenths % 10)) + " s";
}

std::string format_elapsed(std::chrono::nanoseconds time) {
  if (time < std::chrono::seconds(1)) return std::to_string(time / std::chrono::milliseconds(1)) + " ms";
  if (time < std::chrono::minutes(2))
    return format_text("%.1f s", std::chrono::duration<double>(time).count());
  const auto minutes = time / std::chrono::minutes(1);
  if (minutes < 120) return std::to_string(minutes) + " min";
  return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes == std::numeric_limits<std::uint64_t>::max()) return "unlimited";
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit)
    value /= 1024;
  return format_text(unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string format_endpoint(const std::string& address, unsigned port) {
  const bool is_ipv6 = address.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

std::string format_number_set(std::vector<int> numbers, std::size_t most) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1)
      ++last;
    if (runs.size() == most) {
      runs.emplace_back("…");
      break;
    }
    runs.push_back(std::to_string(numbers[i]));
    if (last > i) runs.back() += '-' + std::to_string(numbers[last]);
    i = last + 1;
  }
  return join(runs, ",");
}

std::string format_ranks(std::vector<int> ranks) {
  const std::string word = ranks.size() == 1 ? "rank " : "ranks ";
  return word + format_number_set(std::move(ranks), 8);
}

std::string format_number_range(int first, int count) {
  const std::string low = std::to_string(first);
  return count == 1 ? low : low + '-' + std::to_string(first + count - 1);
}

std::string quote(std::string_view text) {
  return '"' + std::string(text) + '"';
}

std::string join(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) {
    if (&word != &words.front()) text += between;
    text += word;
  }
  return text;
}

std::string join_alternatives(const std::vector<std::string>& words) {
  if (words.size() < 2) return join(words, "");
  return join({words.begin(), words.end() - 1}, ", ") + " or " + words.back();
}

std::string join_some(const std::vector<std::string>& words, std::size_t most) {
  const auto end = words.begin() + static_cast<std::ptrdiff_t>(std::min(words.size(), most));
  const std::string text = join({words.begin(), end}, ", ");
  return words.size() > most ? text + " and " + std::to_string(words.size() - most) + " more" : text;
}

void TextTable::omit_empty_columns() {
  for (std::size_t i = rows_.empty() ? 0 : rows_[0].size(); i-- > 0;) {
    const bool used =
        std::any_of(rows_.begin() + 1, rows_.end(), [i](const auto& row) { return !row[i].text.empty(); });
    for (auto& row : rows_)
      if (!used) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::string TextTable::text(bool colours) const {
  std::vector<std::size_t> widths;  // columns of a terminal
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], count_characters(row[i].text));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string blanks;  // before the next cell that has a text
    for (std::size_t i = 0; i < row.size(); ++i) {
      const Cell& cell = row[i];
      if (!cell.text.empty()) {
        const bool coloured = colours && cell.colour != Colour::kNone;
        text += blanks + (coloured ? begin_of(cell.colour) : "") + cell.text + (coloured ? "\x1b[0m" : "");
        blanks.clear();
      }
      blanks += std::string(widths[i] - count_characters(cell.text) + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

}  // namespace ddp
