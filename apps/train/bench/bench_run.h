#pragma once

namespace ddp::train {

/// Runs `train bench …`: joins the world that the environment names, measures, and prints rank 0's table on
/// stdout. Exit codes: 0; 1 if measuring failed, a result was wrong, or --min-busbw was not reached; 2 for
/// wrong options.
int run_bench(int argc, const char* const* argv);

}  // namespace ddp::train
