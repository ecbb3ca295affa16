#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace ddp {

/// Returns the number that is all of `text`, as std::from_chars reads it: no blanks, no plus sign.
template <class T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

/// Returns the number at the beginning of `text`.
template <class T>
std::optional<T> leading_number(std::string_view text) {
  T value{};
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

/// Returns the number if `text` is digits only and at most `max`.
std::optional<unsigned long long> whole_number(std::string_view text, unsigned long long max);

/// Returns whether `text` has at least one character and only digits.
bool is_digits(std::string_view text);

/// Returns whether programs can set an environment variable of this name: letters, digits and '_', no digit
/// first.
bool is_variable_name(std::string_view name);

/// Returns the text with ASCII letters in lower case.
std::string lower_case(std::string_view text);

/// Returns the words of `text` that blanks, tabs and line ends separate.
std::vector<std::string_view> split_at_blanks(std::string_view text);

/// Returns the number of characters of UTF-8 text.
std::size_t count_characters(std::string_view text);

/// Returns the number of single-character edits (insert, delete, replace, swap of neighbors) between two
/// words.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate that the user most likely meant: the only one that begins with `word` (at least
/// three letters), else the nearest by edit_distance. The distance may be up to a third of the word's length,
/// and 1 is always near enough. The first of equally near candidates wins. The result is empty if none is
/// near, and views into `candidates`.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace ddp
