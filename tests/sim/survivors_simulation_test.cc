// Jobs whose workers survive failures, in virtual time: hundreds of small ones, one with 500 faults, and
// injected bugs, which the simulation must find.
#include "tests/sim/survivors_simulation.h"

#include <cstdlib>
#include <iostream>

#include "tests/support/catch.h"

namespace ddp::sim {
namespace {

using namespace std::chrono_literals;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSlow = true;  // the same code on smaller numbers
#else
constexpr bool kSlow = false;
#endif

/// More seeds: DDP_SIM_SEEDS=100000 build/…/tests/sim_survivors. One seed, with its user messages:
/// DDP_SIM_SEED=4711.
std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST_CASE("survivors: hundreds of jobs end with equal weights or with the right cause") {
  const std::uint64_t one = number_from("DDP_SIM_SEED", 0);
  const std::uint64_t first = one == 0 ? 1 : one;
  const std::uint64_t last = one == 0 ? number_from("DDP_SIM_SEEDS", kSlow ? 100 : 300) : one;
  int done = 0, user = 0, mishaps = 0, restarts = 0, lived_on = 0;
  std::uint64_t steps = 0, events = 0;
  std::map<SimulatedFault, int> kinds;
  std::map<std::string, int> ends;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    SurvivorsSetup setup = random_survivors_setup(seed);
    setup.spec.verbose = one != 0;
    const SurvivorsReport report = simulate_survivors(setup, seed);
    if (one != 0) std::cout << report.log << "exit " << report.exit_code << ": " << report.why << "\n";
    INFO("seed " << seed << ": " << report.broken.value_or("") << "; the job's end: " << report.why);
    REQUIRE_FALSE(report.broken);
    done += report.exit_code == 0;
    user += report.user_stopped;
    restarts += report.restarts;
    lived_on += report.lived_on;
    steps += report.steps;
    events += report.events;
    for (const auto& [kind, times] : report.mishaps) {
      kinds[kind] += times;
      mishaps += times;
    }
  }
  std::cout << (last - first + 1) << " jobs, " << mishaps << " mishaps, " << restarts
            << " restarts, of which " << lived_on << " from a survivor's state, " << steps << " steps, "
            << events << " events; " << done << " done, " << user << " stopped by the user\n";
  if (one != 0) return;
  CHECK(done > static_cast<int>(last / 2));
  CHECK(user > 0);
  CHECK(lived_on > restarts / 4);
  CHECK(static_cast<int>(kinds.size()) == kMishaps);
}

TEST_CASE("survivors: one job survives 500 faults") {
  SurvivorsSetup setup = random_survivors_setup(3);
  launcher::JobSpec& spec = setup.spec;
  spec.hosts.clear();
  for (int i = 0; i < 5; ++i) {
    remote::Host host;
    host.name = "n" + std::to_string(i);
    host.slots = 2;
    spec.hosts.push_back(host);
  }
  spec.spares = 1;
  spec.max_nodes = 4;
  spec.min_nodes = 1;
  spec.scale_up_now = true;
  setup.mishaps = 500;
  setup.between = 20s;
  setup.step_time = 500ms;
  setup.samples = 64;
  setup.batch_size = 4;
  setup.epochs = 500 * setup.between / 2 / (2 * setup.step_time);
  setup.user_may_stop = false;
  const SurvivorsReport report = simulate_survivors(setup, number_from("DDP_SIM_SEED", 1));
  int mishaps = 0;
  for (const auto& [kind, times] : report.mishaps)
    mishaps += times;
  std::cout << mishaps << " mishaps, " << report.restarts << " restarts, of which " << report.lived_on
            << " from a survivor's state, " << report.steps << " steps, " << report.time / 1s << " s\n";
  INFO(report.broken.value_or("") << " " << report.why);
  CHECK_FALSE(report.broken);
  CHECK(report.exit_code == 0);
  CHECK(mishaps >= 450);
  CHECK(report.restarts >= 150);
}

TEST_CASE("survivors: it finds injected errors") {
  const std::map<SurvivorsBug, std::string> bugs{
      {SurvivorsBug::kFromLowest, "the state of the lowest rank"},
      {SurvivorsBug::kOldAnswerBelieved, "an answer to an earlier revoke believed"},
      {SurvivorsBug::kHalfStepKept, "half a step kept"},
      {SurvivorsBug::kSplitKept, "samples divided as before"},
      {SurvivorsBug::kAnswersForged, "nodes that wait before they have answered"},
      {SurvivorsBug::kLeaseForgotten, "no lease"},
      {SurvivorsBug::kPredecessorUnseen, "a predecessor that nobody looked for"},
      {SurvivorsBug::kFenceOff, "no fence"}};
  for (const auto& [bug, name] : bugs) {
    std::uint64_t seed = 1;
    std::optional<std::string> broken;
    for (; seed <= 200 && !broken; ++seed) {
      SurvivorsSetup setup = random_survivors_setup(seed);
      setup.bug = bug;
      broken = simulate_survivors(setup, seed).broken;
    }
    std::cout << "planted: " << name << ": seed " << seed - 1 << ": " << broken.value_or("not found") << "\n";
    INFO(name);
    CHECK(broken);
  }
}

}  // namespace
}  // namespace ddp::sim
