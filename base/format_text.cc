#include "base/format_text.h"

#include <cstdarg>
#include <cstdio>

namespace ddp {

std::string format_text(const char* format, ...) {
  std::string text;
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, arguments);
  if (size > 0) {
    text.resize(static_cast<std::size_t>(size));
    std::vsnprintf(text.data(), text.size() + 1, format, again);
  }
  va_end(again);
  va_end(arguments);
  return text;
}

}  // namespace ddp
