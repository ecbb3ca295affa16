#include "apps/train/step_profile.h"

#include "tests/support/catch.h"

using namespace ddp::train;

TEST_CASE("a profile without a step, and the phases of one") {
  StepProfile profile(false);
  CHECK(profile.percentile(Phase::kForward, 0.5) == 0);
  CHECK(profile.compute_percentile(0.99) == 0);
  profile.begin_step(1);
  profile.enter(Phase::kData);
  profile.enter(Phase::kForward);
  profile.enter(Phase::kBackward);
  profile.enter(Phase::kForward);  // a second micro-batch
  const StepTimes times = profile.end_step();
  CHECK(times[static_cast<std::size_t>(Phase::kForward)] > 0);
  CHECK(times[static_cast<std::size_t>(Phase::kOptimizer)] == 0);
  CHECK(profile.percentile(Phase::kForward, 0.5) == times[static_cast<std::size_t>(Phase::kForward)]);
  CHECK(profile.compute_percentile(0.5) == times[1] + times[2]);
}

TEST_CASE("a trace that cannot be written is an error with its path") {
  CHECK(StepProfile(true).write_trace("/nonexistent/trace", 0).error().text ==
        "create /nonexistent/trace: No such file or directory");
}
