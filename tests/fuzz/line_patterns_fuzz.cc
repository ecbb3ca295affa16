#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <regex>
#include <string>
#include <string_view>

#include "launcher/lines/line_watch.h"

using namespace ddp::launcher;

namespace {

/// Returns the numbers of `patterns` that a line matches when it comes in pieces of `step` bytes.
std::uint32_t matches(LinePatterns& patterns, std::string_view line, std::size_t step) {
  LinePatterns::Line state;
  for (std::size_t at = 0; at < line.size(); at += step) {
    const std::string_view piece = line.substr(at, step);
    if (patterns.read(piece, state) != piece.size() || state.ended) std::abort();
  }
  if (patterns.read("\n", state) != 1 || !state.ended) std::abort();
  return state.found;
}

}  // namespace

// The first byte of the input is the pattern's length, and the next bytes choose from the characters of
// patterns. What follows are lines. A pattern that std::regex knows, too, has to match the same lines. Any
// other pattern is refused or accepted, and no bytes may break it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  constexpr std::string_view kPatternCharacters = "aabb1_ ()||**++??.[]^$--\\\\dwsbBDWS{},12";
  constexpr std::string_view kLineCharacters = "aabb1_ -.\xc3";
  const std::size_t length = 1 + data[0] % 14;
  std::string text;
  std::size_t at = 1;
  for (; at < size && text.size() < length; ++at)
    text += kPatternCharacters[data[at] % kPatternCharacters.size()];
  LinePatterns patterns;
  if (!patterns.add(text)) return 0;
  LinePatterns pair;
  if (!pair.add("b$") || !pair.add(text)) std::abort();

  // These mean something else there, or are refused there.
  bool comparable = text.find("[]") == std::string::npos && text.find("[^]") == std::string::npos &&
                    text.find("{,") == std::string::npos;
  std::regex other;
  try {
    other.assign(text);
  } catch (const std::regex_error&) {
    comparable = false;
  }
  for (int line_number = 0; line_number < 8; ++line_number) {
    std::string line;
    const std::size_t end = at < size ? data[at++] % 12 : 0;
    for (; at < size && line.size() < end; ++at)
      line += kLineCharacters[data[at] % kLineCharacters.size()];
    const std::uint32_t found = matches(patterns, line, 1 + end);
    if (found != matches(patterns, line, 1) || (found != 0) != ((matches(pair, line, 2) & 2) != 0))
      std::abort();
    if (comparable && (found != 0) != std::regex_search(line, other)) std::abort();
  }
  return 0;
}
