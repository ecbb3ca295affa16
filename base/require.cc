#include "base/require.h"

#include <unistd.h>

#include <cstdlib>

namespace ddp {

void report_broken_rule(const char* file, int line, const char* rule,
                        std::initializer_list<RequiredValue> values) {
  const std::string_view path = file;
  // Shown from the repository's root wherever it was built.
  const std::size_t name = path.rfind('/');
  const std::size_t room = name == std::string_view::npos ? name : path.rfind('/', name - 1);
  std::string text = "ddplaunch: internal error: " +
                     std::string(room == std::string_view::npos ? path : path.substr(room + 1)) + ":" +
                     std::to_string(line) + ": " + rule;
  const char* before = " (values: ";
  for (const RequiredValue& value : values) {
    text += before + value.text;
    before = ", ";
  }
  text += values.size() > 0 ? ")" : "";
  text += "; please report\n";
  // One write, so that lines of other processes do not come in between. Its failure changes nothing.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  std::abort();
}

}  // namespace ddp
