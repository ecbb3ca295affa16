#include "base/one_line.h"

#include <cstddef>

namespace ddp {
namespace {

/// The character that begins at `at`, when it is one that must not reach a terminal; its length in bytes.
struct Control {
  unsigned code = 0;
  std::size_t length = 0;  ///< 0: none begins there
};

Control control_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const unsigned first = byte(0);
  if (first < 0x20 || first == 0x7f) return {first, 1};
  if (first == 0xc2 && byte(1) >= 0x80 && byte(1) < 0xa0) return {byte(1), 2};
  if (first != 0xe2 || (byte(1) & 0xc0) != 0x80 || (byte(2) & 0xc0) != 0x80) return {};
  const unsigned code = 0x2000 + ((byte(1) & 0x3f) << 6) + (byte(2) & 0x3f);
  const bool turns = code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
                     (code >= 0x2066 && code <= 0x2069);
  return turns ? Control{code, 3} : Control{};
}

std::string spelled(const Control& control) {
  constexpr std::string_view kHex = "0123456789abcdef";
  switch (control.code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  const bool byte = control.length == 1;
  std::string text = byte ? "\\x" : "\\u";
  for (int shift = byte ? 4 : 12; shift >= 0; shift -= 4)
    text += kHex[(control.code >> shift) & 15];
  return text;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Control control = control_at(text, at);
    if (control.length == 0) {
      line += text[at++];
      continue;
    }
    line += spelled(control);
    at += control.length;
  }
  return line;
}

}  // namespace ddp
