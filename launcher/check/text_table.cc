#include "launcher/check/text_table.h"

#include <algorithm>

namespace ddp::launcher {
namespace {

const char* begin_of(TextTable::Colour colour) {
  switch (colour) {
    case TextTable::Colour::kNone:
      return "";
    case TextTable::Colour::kGood:
      return "\x1b[32m";
    case TextTable::Colour::kDoubtful:
      return "\x1b[33m";
    case TextTable::Colour::kBad:
      return "\x1b[31m";
  }
  return "";
}

/// What a terminal counts: bytes that begin a character.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string TextTable::text(bool colours) const {
  std::vector<std::size_t> widths;
  std::vector<bool> used;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const auto& row = rows_[r];
    widths.resize(std::max(widths.size(), row.size()));
    used.resize(widths.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(row[i].text));
      if (r > 0 && !row[i].text.empty()) used[i] = true;
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string blanks;  // before the next cell that has a text
    bool first = true;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!used[i]) continue;
      if (!first) blanks += "  ";
      first = false;
      const Cell& cell = row[i];
      if (!cell.text.empty()) {
        const bool coloured = colours && cell.colour != Colour::kNone;
        text += blanks + (coloured ? begin_of(cell.colour) : "") + cell.text + (coloured ? "\x1b[0m" : "");
        blanks.clear();
      }
      blanks += std::string(widths[i] - width_of(cell.text), ' ');
    }
    text += '\n';
  }
  return text;
}

}  // namespace ddp::launcher
