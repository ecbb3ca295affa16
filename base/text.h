#pragma once

#include <charconv>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddp {

/// Formats as printf does, without a bound on the length.
[[gnu::format(printf, 1, 2)]] std::string format_text(const char* format, ...);

/// Formats a limit that somebody chose: "500 ms", "3 s", "2.5 s", "10 min", "1 h".
std::string format_duration(std::chrono::nanoseconds time);

/// Formats a measured time: "42 ms", "12.3 s", "5 min", "3 h 25 min".
std::string format_elapsed(std::chrono::nanoseconds time);

/// Formats a number of bytes: "512 B", "1.5 KiB", "120 GiB". The largest number, RLIM_INFINITY, is
/// "unlimited".
std::string format_bytes(std::uint64_t bytes);

/// Returns "ADDRESS:PORT", with an IPv6 address in brackets. `address` is a host name or a numeric address.
std::string format_endpoint(const std::string& address, unsigned port);

/// HOST and PORT of an endpoint, as written and unchecked; either may be empty.
struct HostPort {
  std::string host;                 ///< without brackets
  std::optional<std::string> port;  ///< nullopt: there is no colon before it
};

/// Splits HOST, HOST:PORT, [IPV6] and [IPV6]:PORT. A text with several colons and without brackets is a host
/// alone. The result is nullopt if a bracket at the beginning is not closed, or if not a colon follows it.
std::optional<HostPort> split_endpoint(std::string_view text);

/// Returns numbers as ascending runs: "0-3,7". Of more than `most` runs the rest is ",…".
std::string format_number_set(std::vector<int> numbers,
                              std::size_t most = std::numeric_limits<std::size_t>::max());

/// Returns "rank 3", or "ranks 0-3,7" with at most 8 runs.
std::string format_ranks(std::vector<int> ranks);

/// Returns `count` successive numbers from `first`: "3" or "0-7". `count` is at least 1.
std::string format_number_range(int first, int count);

/// "1 node", "3 nodes". `many` is for a plural that does not only add an s.
template <class Count>
std::string counted(Count count, std::string_view one, std::string_view many = {}) {
  std::string text = std::to_string(count) + ' ';
  text += count == 1 || many.empty() ? one : many;
  return count != 1 && many.empty() ? text + 's' : text;
}

/// Returns two lower-case hexadecimal digits for each byte.
std::string format_hex(std::string_view bytes);

/// Returns the bytes that format_hex made into `text`; nullopt: it made another text.
std::optional<std::string> parse_hex(std::string_view text);

/// Returns the text in double quotes. Nothing is escaped.
std::string quote(std::string_view text);

/// Returns the words with `between` between every two of them.
std::string join(const std::vector<std::string>& words, std::string_view between);

/// Returns "a, b or c".
std::string join_alternatives(const std::vector<std::string>& words);

/// Returns "a, b and 3 more": at most `most` words are named.
std::string join_some(const std::vector<std::string>& words, std::size_t most);

/// Colours on a terminal, by their meaning. kHead is bold, kChosen reversed.
enum class Colour : std::uint8_t { kNone, kGood, kDoubtful, kBad, kHead, kChosen };
/// Returns the words in their colour; without `colours` as they are.
std::string painted(const std::string& words, Colour colour, bool colours);

/// A table for people: each column is as wide as its widest cell, two blanks apart, without blanks at line
/// ends.
class TextTable {
 public:
  struct Cell {
    std::string text;
    Colour colour = Colour::kNone;
    Cell(std::string words = {}, Colour with = Colour::kNone) : text(std::move(words)), colour(with) {}
    Cell(const char* words) : text(words) {}
  };

  /// The first row is the head.
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  /// Leaves out columns whose cells are empty in all rows but the head.
  void omit_empty_columns();
  /// One line per row. `colours`: for a terminal.
  std::string text(bool colours = false) const;

 private:
  std::vector<std::vector<Cell>> rows_;
};

/// Returns the number that is all of `text`, as std::from_chars reads it: no blanks, no plus sign. `base` is
/// for integers.
template <class T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  T value{};
  const char* const end = text.data() + text.size();
  std::from_chars_result read{};
  if constexpr (std::is_integral_v<T>)
    read = std::from_chars(text.data(), end, value, base);
  else
    read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
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

/// Returns the parts of `text` between which `between` stands, as views. An empty text is one empty part.
std::vector<std::string_view> split(std::string_view text, char between);

/// Returns the lines of `text` without their ends, as views. An empty text has none.
std::vector<std::string_view> split_lines(std::string_view text);

// A loop over the parts would outlive a temporary text.
template <class Text>
requires std::same_as<std::remove_const_t<Text>, std::string>
void split(Text&& text, char between) = delete;
template <class Text>
requires std::same_as<std::remove_const_t<Text>, std::string>
void split_lines(Text&& text) = delete;

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

/// One character of text from outside: from a worker, another host, or a file.
struct Utf8Character {
  char32_t code = 0;       ///< if not `valid`, the byte
  std::size_t length = 1;  ///< bytes
  bool valid =
      true;  ///< false: a byte outside any UTF-8 character (overlong forms, surrogates, truncated ones)

  /// Returns whether a terminal would act on the character or show misleading text. Unsafe are the control
  /// characters of both blocks, also as single bytes, as 8-bit terminals read them. Unsafe are also line
  /// separators, marks that change the direction of writing, and invisible characters: soft hyphens,
  /// zero-width spaces and joiners, annotations, tags.
  bool unsafe() const;
  /// Returns whether it is invisible or looks like a blank, but is none: an unsafe character except a tab, or
  /// a blank beyond ASCII, which comes with text copied from a page.
  bool invisible() const;
  /// "no-break space (U+00A0)", "invisible character U+200B", "control character (byte 1)".
  std::string name() const;
};

/// Returns the first character of `text`, which must not be empty.
Utf8Character first_character(std::string_view text);

/// Returns "; the text has a no-break space (U+00A0)" if an error's text quotes an invisible character beyond
/// ASCII, else an empty text.
std::string invisible_hint(std::string_view text);

/// Returns `text` with '?' in place of each unsafe character except newlines and tabs. Other bytes that are
/// not UTF-8 stay: a terminal shows them as invalid.
std::string replace_unsafe(std::string_view text);

/// Returns a JSON document with its unsafe characters beyond ASCII as \uXXXX, which programs read as the same
/// text.
std::string escape_unsafe_in_json(std::string_view document);

/// Makes text from outside (a path, an option's value) safe for one line of a terminal. Unsafe characters
/// (Utf8Character) are spelled out (\n, \t, \x1b, \u202e, \U000e0001). Everything else stays and a backslash
/// is not doubled, so that a second call changes nothing.
std::string one_line(std::string_view text);

}  // namespace ddp
