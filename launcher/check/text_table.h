#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddp::launcher {

/// Columns of text for people: each as wide as its widest cell, two blanks apart, no blanks at line ends.
class TextTable {
 public:
  enum class Colour { kNone, kGood, kDoubtful, kBad };
  struct Cell {
    std::string text;
    Colour colour = Colour::kNone;
    Cell(std::string words = {}, Colour with = Colour::kNone) : text(std::move(words)), colour(with) {}
    Cell(const char* words) : text(words) {}
  };

  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  /// One line a row. Columns that are empty in every row but the first, the head, are left out. `colours`:
  /// for a terminal.
  std::string text(bool colours) const;

 private:
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace ddp::launcher
