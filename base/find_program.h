#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp {

/// Finds the file that execvp would run: a name with a slash is a path seen from `cwd`; any other is looked
/// up in the directories of `path` (the value of PATH; unset: /bin:/usr/bin), where an empty entry means
/// `cwd`. The answer is absolute when `cwd` is (empty: our own working directory, and the answer may be
/// relative to it). Error kExec, the reason in words; sys is ENOENT when nothing was found (shells: exit code
/// 127), else EACCES or EISDIR (126).
Result<std::string> find_program(std::string_view name, std::optional<std::string_view> path,
                                 std::string_view cwd = {});

/// Where the file of this very program lies, absolute and without a slash at its end: its companions lie
/// beside it. Errors: kSystem (no /proc).
Result<std::string> own_directory();

/// Why execve(path) failed with `err` in working directory `cwd` (empty: ours), looked up after the event:
/// "No such file" of an existing script means its interpreter, for instance. Code kExec, sys = err. May read
/// the first bytes of the file.
Error exec_error(int err, const std::string& path, const std::string& cwd);

}  // namespace ddp
