#include "apps/train/training/run_output.h"

#include <string>

#include "tests/support/catch.h"

using namespace ddp::train;

TEST_CASE("a profile without steps, and the phases of one step") {
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

TEST_CASE("the summary of a rank 0 that was started in the middle names its first step") {
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != text.npos; };
  const auto measured = [](std::uint64_t first) {
    StepProfile profile(false);
    for (std::uint64_t step = first; step < first + 3; ++step) {
      profile.begin_step(step);
      profile.enter(Phase::kForward);
      profile.end_step();
    }
    return profile;
  };
  const StepProfile whole = measured(1);
  CHECK(whole.first_step() == 1);
  CHECK(whole.steps() == 3);
  CHECK_FALSE(has(profile_text(whole, {{0, 0.001}}), "begins"));
  CHECK(profile_text(measured(41), {{0, 0.001}})
            .starts_with("profile: begins at step 41: rank 0's process started there\nstep (ms) "));

  // Rank 0 came after the last step: no zeros are printed, and the others are compared without it.
  const std::string none = profile_text(StepProfile(false), {{1, 0.002}, {2, 0.003}});
  CHECK(none ==
        "profile: the process of rank 0 was started after the last step and measured none\n"
        "slowest rank 2: computes 3.000 ms per step, 50 % over the median rank\n");
  CHECK_FALSE(has(profile_text(StepProfile(false), {}), "slowest"));
}
