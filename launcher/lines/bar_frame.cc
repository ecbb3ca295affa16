#include "launcher/lines/bar_frame.h"

#include <algorithm>

namespace ddp::launcher {
namespace {

enum class Kind { kNumber, kFill, kExact };

// Times and rates are numbers too: 00:05, 1.5, "?" before the first is known.
Kind kind_of(char c) {
  if ((c >= '0' && c <= '9') || c == '.' || c == ':' || c == '?') return Kind::kNumber;
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x80 || c == ' ' || c == '#' || c == '=' || c == '-' || c == '>' || c == '*')
    return Kind::kFill;
  return Kind::kExact;
}

std::size_t run_length(std::string_view text, Kind kind) {
  std::size_t length = 0;
  while (length < text.size() && kind_of(text[length]) == kind)
    ++length;
  return length;
}

// Characters, since bars pad by characters.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string_view trimmed(std::string_view row) {
  const std::size_t end = row.find_last_not_of(' ');
  return row.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

std::size_t frame_length(std::string_view previous, std::string_view row) {
  const std::string_view before = trimmed(previous);
  // A frame that ends in a number or a run may go on in what follows: no border can be seen.
  if (before.empty() || kind_of(before.back()) != Kind::kExact) return 0;
  std::string_view pattern = before;
  std::string_view rest = row;
  bool numbers = false;
  while (!pattern.empty()) {
    const Kind kind = kind_of(pattern.front());
    if (kind == Kind::kExact) {
      if (rest.empty() || rest.front() != pattern.front()) return 0;
      pattern.remove_prefix(1);
      rest.remove_prefix(1);
      continue;
    }
    const std::size_t length = run_length(rest, kind);
    // A run of fill may be empty: " 9%" and "10%".
    if (length == 0 && kind == Kind::kNumber) return 0;
    numbers = numbers || kind == Kind::kNumber;
    pattern.remove_prefix(run_length(pattern, kind));
    rest.remove_prefix(length);
  }
  if (!numbers) return 0;  // a word that was printed twice is no bar
  std::size_t frame = row.size() - rest.size();
  // A shorter frame is padded to the width of the one before.
  const std::size_t shown = width_of(row.substr(0, frame));
  const std::size_t full = width_of(before);
  for (std::size_t pad = full > shown ? full - shown : 0; pad > 0 && frame < row.size() && row[frame] == ' ';
       --pad)
    ++frame;
  return frame;
}

}  // namespace ddp::launcher
