#include "apps/train/collectives/interrupt.h"

#include <poll.h>

namespace ddp::train {

namespace {

/// The wait polls in slices, because the awaited work has no descriptor.
constexpr int kSliceMs = 5;

bool is_readable_within(int fd, int milliseconds) {
  pollfd slot{fd, POLLIN, 0};
  return ::poll(&slot, 1, milliseconds) > 0;
}

}  // namespace

bool is_revoked(int interrupt) {
  return interrupt >= 0 && is_readable_within(interrupt, 0);
}

Error revoked_error() {
  return {ErrorCode::kCancelled, "revoked"};
}

Result<bool> through_within(const IsThrough& through, std::chrono::milliseconds longest, int interrupt) {
  if (interrupt < 0) return through(longest);
  const auto deadline = std::chrono::steady_clock::now() + longest;
  for (;;) {
    if (through(std::chrono::milliseconds(0))) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    if (is_readable_within(interrupt, kSliceMs)) return revoked_error();
  }
}

}  // namespace ddp::train
