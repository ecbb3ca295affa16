#include "apps/train/training/run_output.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp::train;

TEST_CASE("a profile without steps, and the phases of one step") {
  StepProfile profile(false);
  CHECK(profile.percentile(Phase::kForward, 0.5) == 0);
  CHECK(profile.own_times().p99 == 0);
  CHECK(profile.own_times().lost == 0);
  profile.begin_step(1);
  profile.enter(Phase::kData);
  profile.enter(Phase::kForward);
  profile.enter(Phase::kBackward);
  profile.enter(Phase::kForward);  // a second micro-batch
  const StepTimes times = profile.end_step();
  CHECK(times[static_cast<std::size_t>(Phase::kForward)] > 0);
  CHECK(times[static_cast<std::size_t>(Phase::kOptimizer)] == 0);
  CHECK(profile.percentile(Phase::kForward, 0.5) == times[static_cast<std::size_t>(Phase::kForward)]);
  CHECK(profile.own_times().p50 == times[0] + times[1] + times[2]);
}

TEST_CASE("what the GPU measured takes the end of a phase, and the wait for others is not a rank's own") {
  StepProfile profile(false);
  profile.begin_step(1);
  profile.enter(Phase::kForward);
  const std::pair<Phase, double> parts[] = {{Phase::kBackward, 2.0}, {Phase::kCommunication, 5.0}};
  profile.divide(parts);
  const StepTimes times = profile.end_step();
  CHECK(times[static_cast<std::size_t>(Phase::kForward)] == 0);
  CHECK(times[static_cast<std::size_t>(Phase::kBackward)] == 2);
  CHECK(times[static_cast<std::size_t>(Phase::kCommunication)] >= 5);
  CHECK(profile.waited() == times[static_cast<std::size_t>(Phase::kCommunication)]);
  CHECK(std::abs(profile.own_times().p50 - 2) < 0.1);
}

TEST_CASE("who hears of a phase knows how long the one before it waited") {
  StepProfile profile(false);
  std::vector<double> waited;
  profile.watch([&](Phase) { waited.push_back(profile.waited()); });
  profile.begin_step(1);
  for (const Phase phase : {Phase::kForward, Phase::kCommunication, Phase::kOptimizer})
    profile.enter(phase);
  REQUIRE(waited.size() == 3);
  CHECK(waited[1] == 0);
  CHECK(waited[2] > 0);
}

TEST_CASE("a rank that is stopped now and then is named by its p99 and by the time that it loses") {
  CHECK(profile_text(StepProfile(false), {{0, {0.004, 0.005, 0.001}}, {1, {0.004, 0.054, 0.09}}})
            .ends_with("slowest rank 0: computes 4.000 ms per step, 0 % over the median rank\n"
                       "slowest rank at p99 1: computes 54.000 ms, 980 % over the median rank\n"
                       "rank 1 loses 9.0 % of its time in steps that take more than twice its median; the "
                       "median rank 0.1 %\n"));
  // A pause in one step of 200 is not in the p99.
  StepProfile profile(false);
  for (std::uint64_t step = 1; step <= 200; ++step) {
    profile.begin_step(step);
    profile.enter(Phase::kForward);
    const std::pair<Phase, double> parts[] = {{Phase::kForward, step == 7 ? 51.0 : 1.0},
                                              {Phase::kCommunication, 1.0}};
    profile.divide(parts);
    profile.end_step();
  }
  CHECK(std::abs(profile.own_times().p99 - 1) < 0.1);
  CHECK(std::abs(profile.own_times().lost - 50.0 / 450) < 0.01);
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
  CHECK_FALSE(has(profile_text(whole, {{0, {0.001, 0.001, 0}}}), "begins"));
  CHECK(profile_text(measured(41), {{0, {0.001, 0.001, 0}}})
            .starts_with("profile: begins at step 41: rank 0's process started there\nstep (ms) "));

  // Rank 0 came after the last step: no zeros are printed, and the others are compared without it.
  const std::string none = profile_text(StepProfile(false), {{1, {0.002, 0.002, 0}}, {2, {0.003, 0.004, 0}}});
  CHECK(none ==
        "profile: the process of rank 0 was started after the last step and measured none\n"
        "slowest rank 2: computes 3.000 ms per step, 50 % over the median rank\n"
        "slowest rank at p99 2: computes 4.000 ms, 100 % over the median rank\n");
  CHECK_FALSE(has(profile_text(StepProfile(false), {}), "slowest"));
}
