#pragma once

#include <vector>

#include "base/result.h"

namespace ddp::launcher {

/// The only table of the reserved codes (docs/users/exit_codes.md). kExec depends on the errno, see
/// exec_exit_code, and kCancelled on the signal, which is in `sys`: 128 + signal.
struct ExitCodeRow {
  ErrorCode error;
  const char* kind;  ///< name in the document and in reports
  int exit_code;
  const char* meaning;
};
const std::vector<ExitCodeRow>& exit_code_table();
int exit_code_of(const Error& error);
/// Returns the code that shells use: 127 when the program or its interpreter was not found, else 126.
int exec_exit_code(int sys);

/// Exit code of an error without a row: an internal error.
inline constexpr int kInternalExit = 110;

}  // namespace ddp::launcher
