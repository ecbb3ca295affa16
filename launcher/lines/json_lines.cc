#include "launcher/lines/json_lines.h"

#include <cstddef>

namespace ddp::launcher {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";

void append_escape(unsigned value, std::string& out) {
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4)
    out += kHex[value >> shift & 0xf];
}

bool is_plain(unsigned char c) {
  return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

bool continues(std::string_view bytes, std::size_t at) {
  return at < bytes.size() && (static_cast<unsigned char>(bytes[at]) & 0xc0) == 0x80;
}

/// Returns the length of the UTF-8 sequence at `at`; 0 when it is invalid (overlong, a surrogate, or above
/// U+10FFFF).
std::size_t sequence_at(std::string_view bytes, std::size_t at) {
  const auto first = static_cast<unsigned char>(bytes[at]);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues(bytes, at + i)) return 0;
  }
  if (length < 3) return length;
  const auto second = static_cast<unsigned char>(bytes[at + 1]);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool outside = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return overlong || outside ? 0 : length;
}

void append_control(unsigned char c, std::string& out) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\n':
      out += "\\n";
      return;
    default:
      append_escape(c, out);
  }
}

}  // namespace

void append_json_string(std::string_view bytes, std::string& out) {
  out += '"';
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t end = at;
    while (end < bytes.size() && is_plain(static_cast<unsigned char>(bytes[end])))
      ++end;
    out += bytes.substr(at, end - at);
    if (end == bytes.size()) break;
    at = end;
    const auto c = static_cast<unsigned char>(bytes[at]);
    const std::size_t length = sequence_at(bytes, at);
    if (length == 1) {
      append_control(c, out);
    } else if (length == 0) {
      append_escape(0xdc00U + c, out);
    } else {
      out += bytes.substr(at, length);
    }
    at += length == 0 ? 1 : length;
  }
  out += '"';
}

void JsonLines::add(const LineSource& source, std::uint8_t stream, std::string_view bytes,
                    std::string_view time, std::string& out) {
  JsonStream& state = streams_[{source.rank, stream}];
  if (state.facts.empty()) {
    state.facts = R"(","host":)";
    append_json_string(source.host, state.facts);
    state.facts += R"(,"rank":)" + std::to_string(source.rank) + R"(,"local_rank":)" +
                   std::to_string(source.local_rank) + R"(,"stream":")" +
                   (stream == 1 ? "stdout" : "stderr") + R"(","line":)";
  }
  lines_.clear();
  if (bytes.empty()) {
    held_.finish(state.lines, lines_);
  } else {
    held_.add(state.lines, bytes, lines_);
  }
  std::string_view rest = lines_;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    out += R"({"time":")";
    out += time;
    out += state.facts;
    append_json_string(rest.substr(0, end), out);
    out += "}\n";
    rest.remove_prefix(end + 1);
  }
}

}  // namespace ddp::launcher
