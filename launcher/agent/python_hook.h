#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp::launcher {

/// The files of write_python_hook. `__pycache__` is a plain file: so Python writes no directory of that name,
/// which the removal of the private directory would leave behind.
inline constexpr std::array<std::string_view, 2> kPythonHookFiles = {"sitecustomize.py", "__pycache__"};

/// What the hook adds to the path of a worker's server: a file with the exception that has ended the worker,
/// in one line, and then PyTorch's record, since the server ends with the worker.
inline constexpr std::string_view kWorkerEndFile = ".end";

/// Writes the hook for Python workers into the agent's private directory. With the directory in PYTHONPATH
/// and a socket's path in DDPLAUNCH_DIAGNOSIS, a worker that imports torch.distributed starts PyTorch's own
/// worker server on that socket (docs/users/hang.md), or a thread that tells only stacks where that server
/// knows none. The hook takes both out of the environment, so children of the worker are not affected, and
/// executes the sitecustomize that it hides. Error: kSystem.
Result<> write_python_hook(const std::string& directory);

}  // namespace ddp::launcher
