#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/system/result.hpp>

#include "remote/hosts/host.h"

namespace ddp::remote {

/// One thing that is wrong in what the user wrote, and where.
struct Mistake {
  Place place;
  std::string message;
};

/// Everything that is wrong in one input, in the order of the input: the user mends a file once, not once a
/// mistake.
struct Mistakes {
  std::vector<Mistake> list;
};

/// A reader stops collecting after this many: a file that is no hostfile at all is not listed line by line.
inline constexpr std::size_t kMaxMistakes = 100;

/// The value, or all mistakes.
template <class T>
using Checked = boost::system::result<T, Mistakes>;

/// "hosts:3:7: message"; parts of the place that are 0 or empty are left out ("--host, column 5: message").
inline std::string to_text(const Mistake& mistake) {
  const Place& place = mistake.place;
  std::string text = place.file;
  if (place.line > 0) {
    text += ':' + std::to_string(place.line);
    if (place.column > 0) text += ':' + std::to_string(place.column);
  } else if (place.column > 0) {
    text += ", column " + std::to_string(place.column);
  }
  return text.empty() ? mistake.message : text + ": " + mistake.message;
}

/// Found by boost::system::result: value() of a failed result is a broken invariant.
[[noreturn]] inline void throw_exception_from_error(const Mistakes& mistakes, const boost::source_location&) {
  throw std::logic_error("unchecked mistakes: " + std::to_string(mistakes.list.size()));
}

/// Number of single-character edits (insert, delete, replace, swap of neighbours) between two words.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that the user most likely meant: one that `word` is the unique beginning of (three letters
/// at least), else the nearest by edit_distance when it is near enough (a third of the word's length, at
/// least 1 edit). Empty: none is near. The first of equally near ones. The result views into `candidates`.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace ddp::remote
