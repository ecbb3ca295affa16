#include "base/result.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace ddp {

Error system_error(int err, std::string_view what, ErrorCode code) {
  // glibc's GNU strerror_r needs no buffer for known numbers and is thread-safe.
  char buffer[128];
  std::string text = one_line(what);
  text += ": ";
  text += strerror_r(err, buffer, sizeof buffer);
  return Error{code, std::move(text), err};
}

Error within(std::string_view where, Error error) {
  error.text = std::string(where) + ": " + error.text;
  return error;
}

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
