#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace ddp::remote {

/// Number of single-character edits (insert, delete, replace, swap of neighbours) between two words.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that the user most likely meant: one that `word` is the unique beginning of (three letters
/// at least), else the nearest by edit_distance when it is near enough (a third of the word's length, at
/// least 1 edit). Empty: none is near. The first of equally near ones. The result views into `candidates`.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace ddp::remote
