#include "launcher/lines/terminal_view.h"

#include <algorithm>

#include "launcher/lines/text_width.h"

namespace ddp::launcher {
namespace {

// Below that a row shows nothing of use, and lines need what room there is.
constexpr std::size_t kLeastColumns = 10;
constexpr std::size_t kLeastRows = 4;
constexpr std::string_view kEraseRest = "\x1b[K";

std::size_t append_live(const LiveRow& row, std::size_t width, std::string& out) {
  // Where it would push the row itself out, it is left out.
  const std::size_t wanted = text_width(row.suffix);
  const std::size_t suffix = wanted <= width / 2 ? wanted : 0;
  std::size_t used = append_row(row.text, width - suffix, out);
  if (suffix > 0) used += append_row(row.suffix, suffix, out);
  return used;
}

}  // namespace

/// The bytes of all rows, each ended; as many as leave the screen half to the lines.
std::string TerminalView::fitted(const std::vector<LiveRow>& rows, Size size,
                                 std::vector<std::size_t>& widths) const {
  std::string bytes;
  if (size.columns < kLeastColumns || size.rows < kLeastRows) return bytes;
  const std::size_t width = size.columns - 1;  // the last column would leave the cursor in doubt
  const std::size_t most = std::max<std::size_t>(size.rows / 2, 2);
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

/// Rows of the screen that the live rows take now.
std::size_t TerminalView::height_now(Size size) const {
  if (!reflows_ || size.columns >= size_.columns || size.columns == 0) return widths_.size();
  std::size_t height = 0;
  for (const std::size_t width : widths_)
    height += std::max<std::size_t>((width + size.columns - 1) / size.columns, 1);
  return height;
}

/// The cursor to the first of the rows that are shown; `erase`: with all of them empty. Row by row, since
/// tmux takes "erase below" at the top of its screen for "clear", and keeps what it cleared in its history.
std::string TerminalView::back_to_first(Size size, bool erase) const {
  std::string bytes;
  const std::size_t height = height_now(size);
  if (height == 0) return bytes;
  const std::string up = "\x1b[" + std::to_string(height) + "A";
  bytes = "\r" + std::string(kEraseRest) + up;  // what was typed, such as ^C, stands in the cursor's row
  if (!erase) return bytes;
  for (std::size_t i = 0; i < height; ++i)
    bytes.append(kEraseRest).append("\x1b[B");
  return bytes + up;
}

std::string TerminalView::draw(std::string_view lines, const std::vector<LiveRow>& rows, Size size) {
  std::vector<std::size_t> widths;
  std::string drawn = fitted(rows, size, widths);
  std::string bytes;
  if (lines.empty() && size == size_ && drawn == drawn_) return bytes;
  // Rows that stay in their places are overwritten instead of erased: no flicker.
  bytes = back_to_first(size, !lines.empty() || size != size_ || widths.size() != widths_.size());
  append_visible(lines, bytes);
  bytes += drawn;
  size_ = size;
  widths_ = std::move(widths);
  drawn_ = std::move(drawn);
  return bytes;
}

}  // namespace ddp::launcher
