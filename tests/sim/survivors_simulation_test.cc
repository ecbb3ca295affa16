// Jobs in virtual time: many whose workers survive many failures, short ones with small budgets, one with 500
// faults, one with many nodes, and injected bugs, which the simulation must find.
#include "tests/sim/survivors_simulation.h"

#include <sys/resource.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <string>

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

struct Runs {
  std::uint64_t count = 0, steps = 0, events = 0;
  int user_stopped = 0, restarts = 0, lived_on = 0, mishaps = 0;
  std::map<SimulatedFault, int> kinds;
  std::map<int, int> codes;
};

/// Runs the jobs of the first `count` seeds, or of the one that DDP_SIM_SEED names, which must keep the
/// guarantees. Returns nothing after a single one.
std::optional<Runs> run_seeds(SurvivorsSetup (*make)(std::uint64_t seed), std::uint64_t count) {
  const std::uint64_t one = number_from("DDP_SIM_SEED", 0);
  const std::uint64_t first = one == 0 ? 1 : one;
  const std::uint64_t last = one == 0 ? number_from("DDP_SIM_SEEDS", count) : one;
  Runs runs;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    SurvivorsSetup setup = make(seed);
    setup.spec.verbose = one != 0;
    const SurvivorsReport report = simulate_survivors(setup, seed);
    if (one != 0) std::cout << report.log << "exit " << report.exit_code << ": " << report.why << "\n";
    INFO("seed " << seed << ": " << report.broken.value_or("") << "; the job's end: " << report.why);
    REQUIRE_FALSE(report.broken);
    ++runs.count;
    ++runs.codes[report.exit_code];
    runs.user_stopped += report.user_stopped;
    runs.restarts += report.restarts;
    runs.lived_on += report.lived_on;
    runs.steps += report.steps;
    runs.events += report.events;
    for (const auto& [kind, times] : report.mishaps) {
      runs.kinds[kind] += times;
      runs.mishaps += times;
    }
  }
  std::cout << runs.count << " jobs, " << runs.mishaps << " mishaps, " << runs.restarts
            << " restarts, of which " << runs.lived_on << " from a survivor's state, " << runs.steps
            << " steps, " << runs.events << " events;";
  for (const auto& [code, times] : runs.codes)
    std::cout << " exit " << code << ": " << times;
  std::cout << "\n";
  if (one != 0) return {};
  return runs;
}

TEST_CASE("survivors: many jobs end with equal weights or with the right cause") {
  auto runs = run_seeds(random_survivors_setup, kSlow ? 30 : 150);
  if (!runs || kSlow) return;
  CHECK(runs->codes[0] > static_cast<int>(runs->count / 2));
  CHECK(runs->user_stopped > 0);
  CHECK(runs->lived_on > runs->restarts / 4);
  CHECK(static_cast<int>(runs->kinds.size()) == kMishaps);
}

TEST_CASE("simulation: many short jobs keep the guarantees") {
  auto runs = run_seeds(random_short_setup, kSlow ? 100 : 1000);
  if (!runs || kSlow) return;
  // The jobs must be meaningful: many succeed despite faults, and every other end occurs.
  CHECK(runs->codes[0] > static_cast<int>(runs->count / 4));
  CHECK(runs->codes[7] > 0);    // a worker failed
  CHECK(runs->codes[137] > 0);  // a worker was killed
  CHECK(runs->codes[113] > 0);  // a node was lost
  CHECK(runs->codes[143] > 0);  // the user stopped it
  CHECK(runs->restarts > static_cast<int>(runs->count / 4));
}

/// A job without faults, whose processes all restart after a failure. Each node has `slots` workers, and a
/// step takes 2 s.
SurvivorsSetup plain_setup(int nodes, int slots) {
  SurvivorsSetup setup;
  setup.spec.job_id = "job";
  for (int i = 0; i < nodes; ++i) {
    remote::Host host;
    host.name = "n" + std::to_string(i);
    host.slots = slots;
    setup.spec.hosts.push_back(host);
  }
  setup.spec.max_nodes = setup.spec.min_nodes = nodes;
  setup.spec.max_restarts = 3;
  setup.spec.start_timeout = 120s;
  setup.spec.node_timeout = 15s;
  setup.spec.fence = launcher::FenceMode::kAll;
  setup.workers_rejoin = false;
  setup.samples = static_cast<std::uint64_t>(nodes * slots);
  setup.batch_size = 1;
  setup.step_time = 2s;
  setup.epochs = 30;
  return setup;
}

TEST_CASE("simulation: a node frozen or cut off for less than its timeout is not lost, without a restart") {
  for (const SimulatedFault fault :
       {SimulatedFault::kAgentFrozen, SimulatedFault::kMachinePaused, SimulatedFault::kCut,
        SimulatedFault::kCutToNode, SimulatedFault::kCutFromNode}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SurvivorsSetup setup = plain_setup(4, 2);
      // The workers of other machines give up a paused one after 12 s.
      const auto lasts = fault == SimulatedFault::kMachinePaused ? 11s : 14s + 500ms;
      setup.planned.push_back({fault, 2, 10s + std::chrono::milliseconds(seed * 137), lasts});
      const SurvivorsReport report = simulate_survivors(setup, seed);
      INFO("fault " << static_cast<int>(fault) << ", seed " << seed << ": " << report.broken.value_or("")
                    << " " << report.why << '\n'
                    << report.log);
      CHECK_FALSE(report.broken);
      CHECK(report.mishaps.size() == 1);
      CHECK(report.exit_code == 0);
      CHECK(report.restarts == 0);
    }
  }
}

TEST_CASE("simulation: a node gone for longer is replaced, and the job finishes") {
  for (const SimulatedFault fault :
       {SimulatedFault::kHostLost, SimulatedFault::kAgentKilled, SimulatedFault::kAgentFrozen,
        SimulatedFault::kMachinePaused, SimulatedFault::kCut, SimulatedFault::kCutToNode,
        SimulatedFault::kCutFromNode, SimulatedFault::kLinkReset}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SurvivorsSetup setup = plain_setup(4, 2);
      setup.spec.max_nodes = setup.spec.min_nodes = 3;
      setup.spec.spares = 1;
      setup.planned.push_back({fault, 1, 10s + std::chrono::milliseconds(seed * 137), 90s});
      const SurvivorsReport report = simulate_survivors(setup, seed);
      INFO("fault " << static_cast<int>(fault) << ", seed " << seed << ": " << report.broken.value_or("")
                    << " " << report.why);
      CHECK_FALSE(report.broken);
      CHECK(report.mishaps.size() == 1);
      CHECK(report.exit_code == 0);
      CHECK(report.restarts == 1);
    }
  }
}

/// A node freezes, and is cut off just before it thaws: Pings wait for it then.
SurvivorsSetup thawing_setup(std::uint64_t seed) {
  SurvivorsSetup setup = plain_setup(4, 2);
  setup.spec.max_nodes = setup.spec.min_nodes = 3;
  setup.spec.spares = 1;
  const auto begins = 10s + std::chrono::milliseconds(seed * 137);
  setup.planned.push_back({SimulatedFault::kAgentFrozen, 1, begins, 12s});
  setup.planned.push_back({SimulatedFault::kCut, 1, begins + 11s, 100s});
  return setup;
}

TEST_CASE("simulation: a node that thaws while it is cut off ends its workers before others start") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const SurvivorsReport report = simulate_survivors(thawing_setup(seed), seed);
    INFO("seed " << seed << ": " << report.broken.value_or("") << " " << report.why);
    CHECK_FALSE(report.broken);
    CHECK(report.exit_code == 0);
    CHECK(report.restarts == 1);
  }
}

/// A node is cut off for good, and the master's machine stops for 1.5 s every 6 s.
SurvivorsSetup dozing_setup() {
  SurvivorsSetup setup = plain_setup(4, 2);
  setup.spec.max_nodes = setup.spec.min_nodes = 3;
  setup.spec.spares = 1;
  setup.planned.push_back({SimulatedFault::kCut, 1, 10s, 1000s});
  for (int i = 0; i < 20; ++i)
    setup.planned.push_back({SimulatedFault::kMasterAsleep, 0, 12s + i * 6s, 1500ms});
  return setup;
}

TEST_CASE("simulation: a node is given up by a master that stops again and again") {
  const SurvivorsReport report = simulate_survivors(dozing_setup(), 1);
  INFO(report.broken.value_or("") << " " << report.why);
  CHECK_FALSE(report.broken);
  CHECK(report.exit_code == 0);
  CHECK(report.restarts == 1);
}

TEST_CASE("simulation: ten thousand nodes with 8 workers each survive the loss of 20 nodes") {
  const int nodes = static_cast<int>(number_from("DDP_SIM_NODES", kSlow ? 200 : 10'000));
  SurvivorsSetup setup = plain_setup(nodes, 8);
  setup.spec.min_nodes = nodes - nodes / 10;
  setup.samples = 64;  // so few that the order of the samples costs nothing; the sampler pads them
  setup.epochs = 6;
  setup.step_time = 10s;
  for (std::size_t i = 0; i < 20; ++i)
    setup.planned.push_back({i % 2 == 0 ? SimulatedFault::kCut : SimulatedFault::kAgentKilled,
                             static_cast<std::size_t>(nodes) / 20 * i, 20s, 1000s});
  const SurvivorsReport report = simulate_survivors(setup, 1);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::cout << nodes << " nodes: " << report.events << " events, " << report.attempts << " attempts, "
            << report.time / 1s << " s of virtual time, at most " << usage.ru_maxrss / 1024 << " MiB\n";
  INFO(report.broken.value_or("") << " " << report.why);
  CHECK_FALSE(report.broken);
  CHECK(report.exit_code == 0);
  CHECK(report.attempts == 2);
  CHECK(usage.ru_maxrss / 1024 < 4096);
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

#ifndef __SANITIZE_ADDRESS__  // the harness is the same in each build
TEST_CASE("survivors: it finds injected errors") {
  const std::map<SurvivorsBug, std::string> bugs{
      {SurvivorsBug::kFromLowest, "the state of the lowest rank"},
      {SurvivorsBug::kOldAnswerBelieved, "an answer to an earlier revoke believed"},
      {SurvivorsBug::kHalfStepKept, "half a step kept"},
      {SurvivorsBug::kSplitKept, "samples divided as before"},
      {SurvivorsBug::kAnswersForged, "nodes that wait before they have answered"},
      {SurvivorsBug::kLeaseForgotten, "no lease"},
      {SurvivorsBug::kPredecessorUnseen, "a predecessor that nobody looked for"},
      {SurvivorsBug::kDismissedForged, "dismissed survivors believed to have ended"},
      {SurvivorsBug::kSilenceForgotten, "silence forgotten after a late tick"},
      {SurvivorsBug::kFenceOff, "no fence"},
      {SurvivorsBug::kPingsUnasked, "pings unasked"},
      {SurvivorsBug::kLateBelieved, "late messages believed"},
      {SurvivorsBug::kWorldDiffers, "worlds differ"},
      {SurvivorsBug::kOneNodeLess, "one node fewer than MIN"},
      {SurvivorsBug::kFreeRestarts, "a restart too many"},
      {SurvivorsBug::kNoTicks, "no ticks"},
      {SurvivorsBug::kNoHeartbeats, "agents without heartbeats"},
      {SurvivorsBug::kClockBehind, "clocks of agents behind"}};
  for (const auto& [bug, name] : bugs) {
    std::uint64_t seed = 1;
    std::optional<std::string> broken;
    for (; seed <= 300 && !broken; ++seed) {
      SurvivorsSetup setup = seed % 3 == 0   ? random_survivors_setup(seed)
                             : seed % 3 == 1 ? random_short_setup(seed)
                             : seed % 2 == 0 ? thawing_setup(seed)
                                             : dozing_setup();
      setup.bug = bug;
      broken = simulate_survivors(setup, seed).broken;
    }
    std::cout << "planted: " << name << ": seed " << seed - 1 << ": " << broken.value_or("not found") << "\n";
    INFO(name);
    CHECK(broken.has_value());
  }
}
#endif

}  // namespace
}  // namespace ddp::sim
