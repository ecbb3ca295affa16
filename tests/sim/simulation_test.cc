// Whole jobs in virtual time: thousands of small worlds under random faults, one with 10,000 nodes, and
// injected bugs, which the simulation must find.
#include "tests/sim/simulation.h"

#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "tests/support/catch.h"

namespace ddp::sim {
namespace {

using namespace std::chrono_literals;
using rendezvous::Outcome;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSlow = true;  // the same code on smaller numbers
#else
constexpr bool kSlow = false;
#endif

/// More seeds: DDP_SIM_SEEDS=100000 build/…/tests/sim_membership. One seed: DDP_SIM_SEED=4711.
std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Returns the CPU time of this process; other processes on the machine do not count.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

TEST_CASE("simulation: thousands of small worlds keep the guarantees") {
  const std::uint64_t one = number_from("DDP_SIM_SEED", 0);
  const std::uint64_t first = one == 0 ? 1 : one;
  const std::uint64_t last = one == 0 ? number_from("DDP_SIM_SEEDS", kSlow ? 3'000 : 10'000) : one;
  const double began = cpu_seconds();
  std::map<Outcome, int> outcomes;
  int restarts = 0;
  std::uint64_t events = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const SimulationReport report = Simulation(random_setup(seed), seed).run();
    INFO("seed " << seed << ": " << report.broken.value_or("") << "; the job's end: " << report.reason);
    REQUIRE_FALSE(report.broken);
    ++outcomes[report.outcome];
    restarts += report.restarts;
    events += report.events;
  }
  const double took = cpu_seconds() - began;
  std::cout << (last - first + 1) << " worlds, " << events << " events, " << restarts << " restarts, " << took
            << " s of one core\n";
  if (one != 0) return;
  // The worlds must be meaningful: many jobs succeed despite faults, and every other outcome occurs.
  CHECK(outcomes[Outcome::kDone] > static_cast<int>(last / 4));
  CHECK(outcomes[Outcome::kFailed] > 0);
  CHECK(outcomes[Outcome::kNodeLost] > 0);
  CHECK(outcomes[Outcome::kTooFew] > 0);
  CHECK(outcomes[Outcome::kUser] > 0);
  CHECK(restarts > static_cast<int>(last / 4));
}

/// Returns the number of seeds until the bug is found; 0: not found.
std::uint64_t found_after(InjectedBug bug, std::string& what) {
  for (std::uint64_t seed = 1; seed <= 10'000; ++seed) {
    Setup setup = random_setup(seed);
    setup.bug = bug;
    setup.faults += 10;
    const SimulationReport report = Simulation(setup, seed).run();
    if (!report.broken) continue;
    what = *report.broken;
    return seed;
  }
  return 0;
}

TEST_CASE("simulation: it finds injected errors") {
  const std::map<InjectedBug, std::string> bugs{{InjectedBug::kNoLease, "no lease"},
                                                {InjectedBug::kPingsUnasked, "pings unasked"},
                                                {InjectedBug::kLateBelieved, "late messages believed"},
                                                {InjectedBug::kWorldDiffers, "worlds differ"},
                                                {InjectedBug::kOneNodeLess, "one node fewer than MIN"},
                                                {InjectedBug::kFreeRestarts, "a restart too many"},
                                                {InjectedBug::kNoTicks, "no ticks"}};
  for (const auto& [bug, name] : bugs) {
    std::string what;
    const std::uint64_t seed = found_after(bug, what);
    std::cout << "planted: " << name << ": seed " << seed << ": " << what << "\n";
    INFO(name);
    CHECK(seed > 0);
  }
}

Setup plain_setup(int nodes, int slots) {
  Setup setup;
  setup.rules.job = "job";
  for (int i = 0; i < nodes; ++i) {
    setup.rules.hosts.push_back("n" + std::to_string(i));
    setup.slots.push_back(slots);
  }
  setup.rules.min_nodes = setup.rules.max_nodes = nodes;
  setup.rules.max_restarts = 3;
  setup.rules.recall = true;
  setup.term = 15s;
  setup.grace = 5s;
  setup.kill = 4s;
  setup.rules.lease = 25s;
  setup.drift_ppm = 200;
  setup.work = 60s;
  setup.min_delay = 50us;
  setup.max_delay = 2ms;
  return setup;
}

TEST_CASE("simulation: a node frozen or cut off for less than its timeout is not lost, without a restart") {
  for (const Fault fault : {Fault::kAgentFrozen, Fault::kMachinePaused, Fault::kMasterFrozen, Fault::kCut,
                            Fault::kCutFromNode, Fault::kCutToNode}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Simulation simulation(plain_setup(4, 2), seed);
      simulation.plan(fault, 2, 10s + std::chrono::milliseconds(seed * 137), 12s);
      const SimulationReport report = simulation.run();
      INFO("fault " << static_cast<int>(fault) << ", seed " << seed << ": " << report.broken.value_or("")
                    << " " << report.reason);
      CHECK_FALSE(report.broken);
      CHECK(report.outcome == Outcome::kDone);
      CHECK(report.restarts == 0);
    }
  }
}

TEST_CASE("simulation: a node gone for longer is replaced, and the job finishes") {
  for (const Fault fault : {Fault::kCrash, Fault::kAgentKilled, Fault::kAgentFrozen, Fault::kMachinePaused,
                            Fault::kCut, Fault::kCutFromNode, Fault::kCutToNode, Fault::kLinkReset}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Setup setup = plain_setup(4, 2);
      setup.rules.min_nodes = setup.rules.max_nodes = 3;
      setup.rules.spares = 1;
      Simulation simulation(setup, seed);
      simulation.plan(fault, 1, 10s + std::chrono::milliseconds(seed * 137), 90s);
      const SimulationReport report = simulation.run();
      INFO("fault " << static_cast<int>(fault) << ", seed " << seed << ": " << report.broken.value_or("")
                    << " " << report.reason);
      CHECK_FALSE(report.broken);
      CHECK(report.outcome == Outcome::kDone);
      CHECK(report.restarts == 1);
    }
  }
}

TEST_CASE("simulation: 10,000 nodes with 8 workers each survive the loss of 20 nodes") {
  const int nodes = kSlow ? 2'000 : 10'000;
  Setup setup = plain_setup(nodes, 8);
  setup.rules.min_nodes = nodes - nodes / 10;
  setup.rules.recall = false;
  Simulation simulation(setup, 1);
  for (rendezvous::HostNumber i = 0; i < 20; ++i)
    simulation.plan(i % 2 == 0 ? Fault::kCut : Fault::kAgentKilled,
                    static_cast<rendezvous::HostNumber>(nodes / 20) * i, 20s, 1000s);
  const double began = cpu_seconds();
  const SimulationReport report = simulation.run();
  const double took = cpu_seconds() - began;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::cout << nodes << " nodes: " << report.events << " events, " << report.attempts << " attempts, "
            << report.time / 1s << " s of virtual time, " << took << " s of one core, at most "
            << usage.ru_maxrss / 1024 << " MiB\n";
  INFO(report.broken.value_or("") << " " << report.reason);
  CHECK_FALSE(report.broken);
  CHECK(report.outcome == Outcome::kDone);
  CHECK(report.attempts == 2);
  CHECK(took < 15);
  CHECK(usage.ru_maxrss / 1024 < 4096);
}

}  // namespace
}  // namespace ddp::sim
