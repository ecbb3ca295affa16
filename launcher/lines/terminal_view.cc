#include "launcher/lines/terminal_view.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/result.h"
#include "base/text.h"

namespace ddp::launcher {
namespace {

struct WidthRange {
  std::uint32_t first;
  std::uint32_t last;
};

// Unicode 15: marks that combine with the previous character, and characters without a shape.
constexpr std::array<WidthRange, 24> kNoWidth{{
    {0x300, 0x36f},   {0x483, 0x489},   {0x591, 0x5bd},     {0x610, 0x61a},     {0x64b, 0x65f},
    {0x670, 0x670},   {0x6d6, 0x6dc},   {0x93c, 0x93c},     {0x941, 0x948},     {0x94d, 0x94d},
    {0xe31, 0xe31},   {0xe34, 0xe3a},   {0xe47, 0xe4e},     {0x1160, 0x11ff},   {0x1ab0, 0x1aff},
    {0x1dc0, 0x1dff}, {0x200c, 0x200d}, {0x20d0, 0x20ff},   {0x302a, 0x302d},   {0x3099, 0x309a},
    {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0x1f3fb, 0x1f3ff}, {0xe0100, 0xe01ef},
}};

// Unicode 15: East Asian Width W and F, and emoji that are drawn wide. Close neighbors are joined.
constexpr std::array<WidthRange, 46> kWide{{
    {0x1100, 0x115f},   {0x231a, 0x231b}, {0x2329, 0x232a},   {0x23e9, 0x23ec},   {0x23f0, 0x23f0},
    {0x23f3, 0x23f3},   {0x25fd, 0x25fe}, {0x2614, 0x2615},   {0x2648, 0x2653},   {0x267f, 0x267f},
    {0x2693, 0x2693},   {0x26a1, 0x26a1}, {0x26aa, 0x26ab},   {0x26bd, 0x26be},   {0x26c4, 0x26c5},
    {0x26ce, 0x26ce},   {0x26d4, 0x26d4}, {0x26ea, 0x26ea},   {0x26f2, 0x26f5},   {0x26fa, 0x26fd},
    {0x2705, 0x2705},   {0x270a, 0x270b}, {0x2728, 0x2728},   {0x274c, 0x274c},   {0x274e, 0x274e},
    {0x2753, 0x2757},   {0x2795, 0x2797}, {0x27b0, 0x27b0},   {0x27bf, 0x27bf},   {0x2b1b, 0x2b1c},
    {0x2b50, 0x2b50},   {0x2b55, 0x2b55}, {0x2e80, 0x303e},   {0x3041, 0x4dbf},   {0x4e00, 0xa4cf},
    {0xa960, 0xa97c},   {0xac00, 0xd7a3}, {0xf900, 0xfaff},   {0xfe10, 0xfe19},   {0xfe30, 0xfe6f},
    {0xff00, 0xff60},   {0xffe0, 0xffe6}, {0x1f18e, 0x1f19a}, {0x1f200, 0x1f64f}, {0x1f680, 0x1faff},
    {0x20000, 0x3fffd},
}};

template <std::size_t N>
bool is_in(const std::array<WidthRange, N>& ranges, std::uint32_t point) {
  const auto* const found =
      std::lower_bound(ranges.begin(), ranges.end(), point,
                       [](const WidthRange& range, std::uint32_t value) { return range.last < value; });
  return found != ranges.end() && found->first <= point;
}

struct Piece {
  std::size_t bytes;
  std::size_t width;
  enum class Kind : std::uint8_t { kText, kColour, kControl, kInvalid } kind;
};

std::size_t colour_length(std::string_view text) {
  if (text.size() < 3 || text[1] != '[') return 0;
  const std::size_t end = text.find_first_not_of("0123456789;:", 2);
  // Colors are all that a worker may send to the terminal. Any other sequence could move the cursor or change
  // its mode.
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

/// True for characters that are not sent to a terminal. Joiners pass, since emoji and words of some languages
/// need them.
bool is_kept_back(const Utf8Character& character) {
  return character.unsafe() && character.code != 0x200c && character.code != 0x200d;
}

Piece wide_character(std::string_view text) {
  const Utf8Character character = first_character(text);
  if (!character.valid) return {1, 1, Piece::Kind::kInvalid};
  if (is_kept_back(character)) return {character.length, 1, Piece::Kind::kControl};
  if (is_in(kNoWidth, character.code)) return {character.length, 0, Piece::Kind::kText};
  return {character.length, is_in(kWide, character.code) ? 2u : 1u, Piece::Kind::kText};
}

// Returns the next character or color of `text`, which must not be empty.
Piece next_piece(std::string_view text) {
  const char c = text.front();
  if (c == '\x1b') {
    if (const std::size_t length = colour_length(text); length > 0) return {length, 0, Piece::Kind::kColour};
    return {1, 1, Piece::Kind::kControl};
  }
  const auto byte = static_cast<unsigned char>(c);
  if (byte < 0x20 || byte == 0x7f) return {1, 1, Piece::Kind::kControl};
  if (byte < 0x80) return {1, 1, Piece::Kind::kText};
  return wide_character(text);
}

// Smaller terminals show no live rows: a row would be useless, and lines need the space.
constexpr std::size_t kLeastColumns = 10;
constexpr std::size_t kLeastRows = 4;
constexpr std::string_view kEraseRest = "\x1b[K";

std::size_t append_live(const LiveRow& row, std::size_t width, std::string& out) {
  // A suffix that would displace the row itself is omitted.
  const std::size_t wanted = text_width(row.suffix);
  const std::size_t suffix = wanted <= width / 2 ? wanted : 0;
  std::size_t used = append_row(row.text, width - suffix, out);
  if (suffix > 0) used += append_row(row.suffix, suffix, out);
  return used;
}

}  // namespace

std::size_t text_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Piece piece = next_piece(text);
    width += piece.width;
    text.remove_prefix(piece.bytes);
  }
  return width;
}

std::size_t append_row(std::string_view row, std::size_t width, std::string& out) {
  std::size_t used = 0;
  bool coloured = false;
  while (!row.empty()) {
    const Piece piece = next_piece(row);
    if (used + piece.width > width) break;
    used += piece.width;
    if (piece.kind == Piece::Kind::kControl)
      out += ' ';
    else if (piece.kind == Piece::Kind::kInvalid)
      out += "\xef\xbf\xbd";
    else
      out += row.substr(0, piece.bytes);
    coloured = coloured || piece.kind == Piece::Kind::kColour;
    row.remove_prefix(piece.bytes);
  }
  // A row that was cut may have lost the end of its color, which would then run into the next row.
  if (coloured) out += "\x1b[0m";
  return used;
}

void append_visible(std::string_view lines, std::string& out) {
  bool coloured = false;
  while (!lines.empty()) {
    const auto* const end = std::find_if(lines.begin(), lines.end(), [](char c) {
      const auto byte = static_cast<unsigned char>(c);
      return (byte < 0x20 && c != '\t') || byte >= 0x7f;
    });
    const auto clean = static_cast<std::size_t>(end - lines.begin());
    out += lines.substr(0, clean);
    lines.remove_prefix(clean);
    if (lines.empty()) return;
    const std::size_t colour = lines.front() == '\x1b' ? colour_length(lines) : 0;
    const Utf8Character character = first_character(lines);
    if (colour > 0) {
      coloured = lines.substr(0, colour) != "\x1b[0m" && lines.substr(0, colour) != "\x1b[m";
      out += lines.substr(0, colour);
    } else if (static_cast<unsigned char>(lines.front()) >= 0x80) {
      if (!is_kept_back(character))
        out += lines.substr(0, character.length);
      else if (character.code < 0xa0)  // equals ESC and one of @ to _, also as a single byte
        out.append("^[") += static_cast<char>(character.code - 0x40);
      else
        out += '?';
    } else if (lines.front() == '\n') {
      if (coloured) out += "\x1b[0m";
      coloured = false;
      out += '\n';
    } else {
      out += '^';
      out += static_cast<char>(lines.front() ^ 0x40);
    }
    lines.remove_prefix(std::max(colour, character.length));
  }
}

/// Returns the bytes of the rows, each ended. They take at most half of the screen, so that lines keep the
/// rest.
std::string TerminalView::fitted(std::vector<LiveRow> rows, Size size,
                                 std::vector<std::size_t>& widths) const {
  std::string bytes;
  if (size.columns < kLeastColumns || size.rows < kLeastRows) return bytes;
  const std::size_t width = size.columns - 1;  // after the last column the cursor position is ambiguous
  const std::size_t most = std::max<std::size_t>(size.rows / 2, 2);
  if (rows.size() > most) std::erase_if(rows, [](const LiveRow& row) { return row.needs_room; });
  const std::size_t shown = rows.size() <= most ? rows.size() : most - 1;
  const auto end_row = [&](std::size_t used) {
    widths.push_back(used);
    bytes.append(kEraseRest).append("\r\n");
  };
  for (std::size_t i = 0; i < shown; ++i)
    end_row(append_live(rows[i], width, bytes));
  if (shown < rows.size()) {
    const std::string more = "… and " + std::to_string(rows.size() - shown) + " more";
    end_row(append_row(more, width, bytes));
  }
  return bytes;
}

/// Returns the rows of the screen that the live rows occupy.
std::size_t TerminalView::height_now(Size size) const {
  if (!reflows_ || size.columns >= size_.columns || size.columns == 0) return widths_.size();
  std::size_t height = 0;
  for (const std::size_t width : widths_)
    height += std::max<std::size_t>((width + size.columns - 1) / size.columns, 1);
  return height;
}

/// Returns the bytes that move the cursor to the first live row; `erase` also empties the rows. They are
/// erased one by one: tmux treats "erase below" at the top of its screen as "clear" and keeps the cleared
/// rows in its history.
std::string TerminalView::back_to_first(Size size, bool erase) const {
  std::string bytes;
  const std::size_t height = height_now(size);
  if (height == 0) return bytes;
  const std::string up = "\x1b[" + std::to_string(height) + "A";
  bytes = "\r" + std::string(kEraseRest) + up;  // erases typed characters, such as ^C, in the cursor's row
  if (!erase) return bytes;
  for (std::size_t i = 0; i < height; ++i)
    bytes.append(kEraseRest).append("\x1b[B");
  return bytes + up;
}

std::string TerminalView::draw(std::string_view lines, const std::vector<LiveRow>& rows, Size size) {
  std::vector<std::size_t> widths;
  std::string drawn = fitted(rows, size, widths);
  DDP_REQUIRE(widths.empty() || widths.size() < size.rows, widths.size(), size.rows);  // lines have room
  std::string bytes;
  if (lines.empty() && size == size_ && drawn == drawn_) return bytes;
  // Rows that keep their positions are overwritten, not erased, to avoid flicker.
  bytes = back_to_first(size, !lines.empty() || size != size_ || widths.size() != widths_.size());
  append_visible(lines, bytes);
  bytes += drawn;
  size_ = size;
  widths_ = std::move(widths);
  drawn_ = std::move(drawn);
  return bytes;
}

}  // namespace ddp::launcher
