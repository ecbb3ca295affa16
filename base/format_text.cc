#include "base/format_text.h"

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>

namespace ddp {

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

std::string quoted(std::string_view text) {
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

}  // namespace ddp
