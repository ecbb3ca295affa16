#include "apps/train/training/standard_output.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "base/result.h"

namespace ddp::train {

namespace {

constexpr int kNotPrinted = 116;

Result<>& outcome() {
  static Result<> of_all;
  return of_all;
}

/// Of print_out() and of what was written otherwise (--help).
Result<> all_printed() {
  if (!outcome()) return outcome();
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return system_error(errno != 0 ? errno : EIO, "write standard output");
}

}  // namespace

void print_out(const char* format, ...) {
  if (!outcome()) return;
  errno = 0;
  va_list arguments;
  va_start(arguments, format);
  const bool written = std::vprintf(format, arguments) >= 0 && std::fflush(stdout) == 0;
  va_end(arguments);
  if (written) return;
  outcome() = system_error(errno, "write standard output");
  std::fprintf(stderr, "train: %s; the work goes on without it\n", outcome().error().text.c_str());
}

int exit_code_after_printing(int code) {
  if (code != 0) return code;
  const auto printed = all_printed();
  if (printed) return code;
  std::fprintf(stderr, "train: the results are not all on standard output: %s\n",
               printed.error().text.c_str());
  return kNotPrinted;
}

}  // namespace ddp::train
