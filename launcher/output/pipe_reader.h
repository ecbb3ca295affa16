#pragma once

#include <string>

namespace ddp::launcher {

/// Who reads the pipe that `fd` writes into, as "less (pid 4711)": the first process of this user that has
/// its read end, other than we ourselves. Empty when `fd` is no pipe or nobody can be seen. Walks /proc, so
/// not for often.
std::string pipe_reader(int fd);

}  // namespace ddp::launcher
