#include "base/result.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/safe_text.h"

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

}  // namespace ddp
