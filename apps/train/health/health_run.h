#pragma once

namespace ddp::train {

/// Runs `train health …`; returns the exit code (docs/users/acceptance.md).
int run_health(int argc, const char* const* argv);

}  // namespace ddp::train
