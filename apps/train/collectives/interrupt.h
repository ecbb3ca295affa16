#pragma once

#include <chrono>
#include <functional>

#include "base/result.h"

namespace ddp::train {

/// Returns true if the descriptor that revokes an attempt is readable; -1 never is.
bool is_revoked(int interrupt);
Error revoked_error();

/// Returns within `longest` whether this rank has finished the work that it, or others, wait for.
using IsThrough = std::function<bool(std::chrono::milliseconds longest)>;
/// Calls `through` for at most `longest`. Fails with kCancelled soon after `interrupt` (a descriptor, or -1)
/// becomes readable.
Result<bool> through_within(const IsThrough& through, std::chrono::milliseconds longest, int interrupt);

}  // namespace ddp::train
