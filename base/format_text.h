#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
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

/// Returns the text in double quotes. Nothing is escaped.
std::string quote(std::string_view text);

/// Returns the words with `between` between every two of them.
std::string join(const std::vector<std::string>& words, std::string_view between);

/// Returns "a, b or c".
std::string join_alternatives(const std::vector<std::string>& words);

/// Returns "a, b and 3 more": at most `most` words are named.
std::string join_some(const std::vector<std::string>& words, std::size_t most);

/// A table for people: each column is as wide as its widest cell, two blanks apart, without blanks at line
/// ends.
class TextTable {
 public:
  enum class Colour { kNone, kGood, kDoubtful, kBad };
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

}  // namespace ddp
