#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace ddp {

/// Returns the number if `text` is digits only and at most `max`.
std::optional<unsigned long long> whole_number(std::string_view text, unsigned long long max);

/// Returns the number of single-character edits (insert, delete, replace, swap of neighbors) between two
/// words.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate that the user most likely meant: the only one that begins with `word` (at least
/// three letters), else the nearest by edit_distance. The distance may be up to a third of the word's length,
/// and 1 is always near enough. The first of equally near candidates wins. The result is empty if none is
/// near, and views into `candidates`.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace ddp
