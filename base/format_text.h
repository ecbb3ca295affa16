#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddp {

/// Formats as printf does, without a bound on the length.
[[gnu::format(printf, 1, 2)]] std::string format_text(const char* format, ...);

/// "500 ms", "3 s", "2.5 s", "10 min", "1 h".
std::string format_duration(std::chrono::nanoseconds time);

/// "1 node", "3 nodes". `many` is for a plural that does not only add an s.
template <class Count>
std::string counted(Count count, std::string_view one, std::string_view many = {}) {
  std::string text = std::to_string(count) + ' ';
  text += count == 1 || many.empty() ? one : many;
  return count != 1 && many.empty() ? text + 's' : text;
}

/// Returns the text in double quotes. Nothing is escaped.
std::string quoted(std::string_view text);

/// Returns the words with `between` between every two of them.
std::string join(const std::vector<std::string>& words, std::string_view between);

/// Returns "a, b or c".
std::string join_alternatives(const std::vector<std::string>& words);

/// "a, b and 3 more": at most `most` words are named.
std::string join_some(const std::vector<std::string>& words, std::size_t most);

}  // namespace ddp
