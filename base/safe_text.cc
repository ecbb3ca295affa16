#include "base/safe_text.h"

#include <algorithm>
#include <array>

namespace ddp {
namespace {

struct CodepointRange {
  char32_t first;
  char32_t last;
};
constexpr std::array<CodepointRange, 11> kUnsafe{{{0x00, 0x1f},
                                                  {0x7f, 0x9f},
                                                  {0xad, 0xad},
                                                  {0x61c, 0x61c},
                                                  {0x180e, 0x180e},
                                                  {0x200b, 0x200f},
                                                  {0x2028, 0x202e},
                                                  {0x2060, 0x2069},
                                                  {0xfeff, 0xfeff},
                                                  {0xfff9, 0xfffb},
                                                  {0xe0000, 0xe007f}}};

void append_json_escape(char32_t unit, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4)
    out += kHex[(unit >> shift) & 15];
}

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

bool Utf8Character::unsafe() const {
  if (!valid && code >= 0xa0) return false;  // the byte 0xad alone is no soft hyphen
  return std::any_of(kUnsafe.begin(), kUnsafe.end(), [this](const CodepointRange& range) {
    return range.first <= code && code <= range.last;
  });
}

bool Utf8Character::invisible() const {
  constexpr std::array<CodepointRange, 6> kBlanks{{{0xa0, 0xa0},
                                                   {0x1680, 0x1680},
                                                   {0x2000, 0x200a},
                                                   {0x202f, 0x202f},
                                                   {0x205f, 0x205f},
                                                   {0x3000, 0x3000}}};
  return (unsafe() && code != '\t') ||
         (valid && std::any_of(kBlanks.begin(), kBlanks.end(), [this](const CodepointRange& range) {
            return range.first <= code && code <= range.last;
          }));
}

std::string Utf8Character::name() const {
  if (code < 0xa0) return "control character (byte " + std::to_string(static_cast<unsigned>(code)) + ')';
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string number;
  for (int shift = code > 0xffff ? 20 : 12; shift >= 0; shift -= 4)
    number += kHex[(code >> shift) & 15];
  const bool no_break = code == 0xa0 || code == 0x202f;
  return no_break ? "no-break space (U+" + number + ')' : "invisible character U+" + number;
}

Utf8Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1, true};
  const Utf8Character invalid{lead, 1, false};
  const std::size_t length = lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 1;
  if (length == 1 || text.size() < length) return invalid;
  char32_t code = lead & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0U) != 0x80) return invalid;
    code = code << 6 | (next & 0x3fU);
  }
  constexpr std::array<char32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff) return invalid;
  return {code, length, true};
}

std::string invisible_hint(std::string_view text) {
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (character.invisible() && character.code >= 0xa0) {
      const std::string name = character.name();
      return (name.starts_with('i') ? "; the text has an " : "; the text has a ") + name;
    }
    text.remove_prefix(character.length);
  }
  return {};
}

std::string replace_unsafe(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    const bool stays = !character.unsafe() || character.code == '\n' || character.code == '\t';
    if (stays)
      safe += text.substr(0, character.length);
    else
      safe += '?';
    text.remove_prefix(character.length);
  }
  return safe;
}

std::string escape_unsafe_in_json(std::string_view document) {
  std::string safe;
  safe.reserve(document.size());
  while (!document.empty()) {
    const Utf8Character character = first_character(document);
    // Below 0x7f only the line ends between elements are unsafe; JSON text has no other control characters.
    if (character.code < 0x7f || !character.unsafe()) {
      safe += document.substr(0, character.length);
    } else if (character.code < 0x10000) {
      append_json_escape(character.code, safe);
    } else {  // a UTF-16 surrogate pair
      append_json_escape(0xd7c0 + (character.code >> 10), safe);
      append_json_escape(0xdc00 + (character.code & 0x3ff), safe);
    }
    document.remove_prefix(character.length);
  }
  return safe;
}

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
