#pragma once

namespace ddp::train {

/// `train bench …`: joins the world that the environment names, measures, prints rank 0's table on stdout.
/// Exit code: 0; 1 when it could not be measured, a result was wrong, or --min-busbw was not reached; 2 for
/// wrong options.
int run_bench(int argc, const char* const* argv);

}  // namespace ddp::train
