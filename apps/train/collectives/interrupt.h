#pragma once

#include <chrono>
#include <functional>

#include "base/result.h"

namespace ddp::train {

/// Whether the descriptor that revokes an attempt is readable; of -1 never.
bool is_revoked(int interrupt);
Error revoked_error();

/// Says after `longest` at the latest whether this rank is through with what it, or others, wait for.
using IsThrough = std::function<bool(std::chrono::milliseconds longest)>;
/// The same, for at most `longest`; kCancelled soon after `interrupt` (a descriptor, or -1) becomes readable.
Result<bool> through_within(const IsThrough& through, std::chrono::milliseconds longest, int interrupt);

}  // namespace ddp::train
