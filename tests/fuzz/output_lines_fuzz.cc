#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/text.h"
#include "launcher/lines/live_board.h"
#include "launcher/lines/output_lines.h"
#include "tests/fuzz/require.h"

using namespace ddp::launcher;

namespace {

std::string rows_of(const LineAssembler& lines) {
  std::string rows;
  lines.live(rows);
  return rows;
}

// Output for the terminal may hold colours, erase sequences, and cursor movement up and down. All other
// control sequences, bidirectional marks, and invisible characters except joiners are errors.
void require_harmless(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (bytes[at] != 0x1b) {
      const ddp::Utf8Character character = ddp::first_character(bytes.substr(at));
      require(!character.unsafe() ||
              std::u32string_view(U"\n\r\t\u200c\u200d").find(character.code) != std::u32string_view::npos);
      at += character.length - 1;
      continue;
    }
    require(bytes.substr(at, 2) == "\x1b[");
    at = bytes.find_first_not_of("0123456789;:", at + 2);
    require(at != std::string_view::npos &&
            std::string_view("mKAB").find(bytes[at]) != std::string_view::npos);
  }
}

}  // namespace

// The first byte of the input sets the size of the chunks. The lines and the open rows must not depend on
// that size, and each step must stay within its bounds. The tail, the label parser and the view must accept
// any bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t step = 1 + data[0] % 64;
  const bool settles = data[0] >= 128;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);

  LineAssembler whole("[l] ");
  std::string expected;
  LineAssembler cut("[l] ");
  LineAssembler settled("[l] ");
  StderrTail tail;
  TerminalView view(true);
  BarFold fold(Bars::kAll);
  std::string lines;
  std::string settled_lines;
  whole.add(bytes, expected);
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    const std::string_view chunk = bytes.substr(at, step);
    const std::size_t before = lines.size();
    cut.add(chunk, lines);
    tail.add(chunk);
    settled.add(chunk, settled_lines);
    if (settles) settled.finish_idle(at % 2 == 0, settled_lines);
    require(cut.held() <= kMaxLine + 2 * step + 256);
    const std::string rows = rows_of(cut);
    fold.set(1, 0, "[l] ", rows);
    require_harmless(
        view.draw(std::string_view(lines).substr(before), fold.rows(), {2 + at % 90, 2 + at % 30}));
  }
  require(rows_of(cut) == rows_of(whole));
  whole.finish(expected);
  cut.finish(lines);
  settled.finish(settled_lines);
  require(lines == expected && cut.held() == 0);
  require(settles || settled_lines == expected);
  require(lines.find_first_of("\r\b") == std::string::npos);  // the assembler resolves both
  require(tail.lines().size() <= StderrTail::kMaxLines);
  std::string row;
  require(append_row(bytes, step, row) <= step && text_width(row) <= step);

  if (check_label_template(bytes)) (void)Label(bytes, LineSource{"h", 1, 2, 3, "stdout"});
  return 0;
}
