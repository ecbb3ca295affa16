#pragma once

namespace ddp::train {

/// printf to standard output, at once. When it cannot be written any more (full, or its reader has gone),
/// that is said once on stderr, and from then on nothing is written there: training is worth more than its
/// lines.
[[gnu::format(printf, 1, 2)]] void print_out(const char* format, ...);
/// At the end of main: `code`, or, when all went well but not all could be printed, 116, with the reason on
/// stderr (as ddplaunch's own results, docs/exit_codes.md).
int exit_code_after_printing(int code);

}  // namespace ddp::train
