#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "launcher/output_lines.h"

// The first byte says how the rest is cut into chunks; whatever the cut, the lines are the same, and the tail
// and the label parser take any bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddp::launcher;
  if (size == 0) return 0;
  const std::size_t step = 1 + data[0] % 64;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);

  LineAssembler whole("[l] ");
  std::string expected;
  whole.add(bytes, expected);
  whole.finish(expected);

  LineAssembler cut("[l] ");
  StderrTail tail;
  std::string lines;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    cut.add(bytes.substr(at, step), lines);
    tail.add(bytes.substr(at, step));
  }
  cut.finish(lines);
  if (lines != expected || cut.held() != 0) std::abort();
  if (tail.lines().size() > StderrTail::kMaxLines) std::abort();
  if (lines.find('\r') != std::string::npos) std::abort();  // no carriage return ever reaches the view

  if (check_label_template(bytes)) (void)make_label(bytes, {"h", 1, 2, 3, "stdout"});
  return 0;
}
