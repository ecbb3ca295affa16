#include "base/one_line.h"

#include "base/utf8_character.h"

namespace ddp {
namespace {

std::string spelled(const Utf8Character& character) {
  constexpr std::string_view kHex = "0123456789abcdef";
  switch (character.code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  const bool byte = character.length == 1;
  const bool tag = character.code > 0xffff;
  std::string text = byte ? "\\x" : tag ? "\\U" : "\\u";
  for (int shift = byte ? 4 : tag ? 28 : 12; shift >= 0; shift -= 4)
    text += kHex[(character.code >> shift) & 15];
  return text;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (character.unsafe())
      line += spelled(character);
    else
      line += text.substr(0, character.length);
    text.remove_prefix(character.length);
  }
  return line;
}

}  // namespace ddp
