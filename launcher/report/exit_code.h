#pragma once

#include <vector>

#include "base/result.h"

namespace ddp::launcher {

/// The one table of the reserved codes (docs/exit_codes.md). kExec takes the errno into account: use
/// exec_exit_code.
struct ExitCodeRow {
  ErrorCode error;
  const char* kind;  ///< its name in the document and in reports
  int exit_code;
  const char* meaning;
};
const std::vector<ExitCodeRow>& exit_code_table();
int exit_code_of(const Error& error);
/// As shells do: 127 when the program or its interpreter was not found, else 126.
int exec_exit_code(int sys);

/// For what fits no row: our own mistake.
inline constexpr int kInternalExit = 110;

}  // namespace ddp::launcher
