// The faults of the simulation, and random jobs.
#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/survivors_world.h"

namespace ddp::sim {

using namespace std::chrono_literals;
using namespace rendezvous;
namespace job = launcher::job;

namespace {

constexpr Time kCutAtMost = 40s;
/// A longer suspension of a machine lets collectives of the other ranks time out.
constexpr Time kPauseAtMost = 12s;

}  // namespace

void SurvivorsWorld::next_mishap() {
  if (mishaps_left_ == 0 || supervisor_.state() >= launcher::Supervisor::State::kLeaving) return;
  const auto kind = static_cast<SimulatedFault>(random_() % kMishaps);
  if (kind != SimulatedFault::kUserStops || (setup_.user_may_stop && chance(60))) {
    --mishaps_left_;
    happen(kind);
  }
  after(some(0s, setup_.between), [this] { next_mishap(); });
}

void SurvivorsWorld::happen(SimulatedFault kind) {
  if (befall_worker(kind) || befall_node(kind) || befall_master(kind)) ++report_.mishaps[kind];
}

void SurvivorsWorld::happened(SimulatedFault kind, std::size_t host, Time until) {
  mishaps_.push_back({kind, host, now_, until});
}

SimWorker* SurvivorsWorld::some_worker() {
  std::vector<SimWorker*> live_ones;
  for (SimWorker& worker : workers_)
    if (worker.alive && !worker.frozen) live_ones.push_back(&worker);
  return live_ones.empty() ? nullptr : live_ones[random_() % live_ones.size()];
}

SimAgent* SurvivorsWorld::some_agent() {
  std::vector<SimAgent*> live_ones;
  for (SimAgent& agent : agents_)
    if (agent.alive && agent.node_open) live_ones.push_back(&agent);
  return live_ones.empty() ? nullptr : live_ones[random_() % live_ones.size()];
}

bool SurvivorsWorld::befall_worker(SimulatedFault kind) {
  SimWorker* worker = some_worker();
  if (worker == nullptr) return false;
  const std::size_t host = agents_[worker->agent].host;
  if (kind == SimulatedFault::kWorkerKilled) {
    happened(kind, host, now_);
    die(*worker, SimDeath::By::kFault, 0, SIGKILL);
  } else if (kind == SimulatedFault::kWorkerFails) {
    happened(kind, host, now_);
    die(*worker, SimDeath::By::kFault, 7, 0);
  } else if (kind == SimulatedFault::kWorkerFrozen) {
    happened(kind, host, now_);
    worker->frozen = true;
    // If no other rank waits for the frozen worker, it is killed in the end.
    after(300s, [this, id = worker->id, host] {
      if (!workers_[id].alive) return;
      happened(SimulatedFault::kWorkerFrozen, host, now_);
      die(workers_[id], SimDeath::By::kFault, 0, SIGKILL);
    });
    if (worker->present) attempts_[worker->present->attempt].torn = true;
    if (worker->present) look_for_stall(worker->present->attempt);
  } else if (kind == SimulatedFault::kWorkerSlow) {
    happened(kind, host, now_ + 600s);
    worker->slow = true;
  } else if (kind == SimulatedFault::kKilledOnRevoke || kind == SimulatedFault::kKilledWaiting ||
             kind == SimulatedFault::kKilledSharing || kind == SimulatedFault::kFrozenOnSpawn) {
    armed_.insert(kind);
  } else if (kind == SimulatedFault::kPeersCut) {
    const SimWorker* other = some_worker();
    if (other == worker || !worker->present || !other->present) return false;
    const Time until = now_ + some(1s, 20s);
    happened(kind, host, until);
    mishaps_.back().host.reset();
    std::erase_if(peer_cuts_, [this](const PeerCut& cut) { return cut.until <= now_; });
    peer_cuts_.push_back({worker->id, other->id, until});
    if (cut_off(*worker)) {
      attempts_[worker->present->attempt].torn = true;
      look_for_stall(worker->present->attempt);
    }
  } else {
    return false;
  }
  return true;
}

/// Kills one of this agent's workers soon.
void SurvivorsWorld::kill_one_of(SimulatedFault armed, std::uint32_t id) {
  const SimAgent& agent = agents_[id];
  if (agent.processes.empty() || armed_.erase(armed) == 0) return;
  auto process = agent.processes.begin();
  std::advance(process, static_cast<std::ptrdiff_t>(random_() % agent.processes.size()));
  after(some(0s, 30ms), [this, worker = process->second.worker, armed] {
    if (!workers_[worker].alive) return;
    happened(armed, agents_[workers_[worker].agent].host, now_);
    die(workers_[worker], SimDeath::By::kFault, 0, SIGKILL);
  });
}

bool SurvivorsWorld::befall_node(SimulatedFault kind) {
  SimAgent* agent = some_agent();
  return agent != nullptr && befall_node(*agent, kind, now_ + some(200ms, chance(40) ? kCutAtMost : 5s));
}

bool SurvivorsWorld::befall_node(SimAgent& agent, SimulatedFault kind, Time until) {
  SimHost& host = hosts_[agent.host];
  const std::uint32_t id = agent.id;
  const bool suspended = host.paused > now_;
  if (kind == SimulatedFault::kAgentKilled) {
    if (suspended) return false;
    // The keeper keeps the link open until it has cleaned up, or the link closes at once.
    if (chance(50))
      after(1ms, [this, id] { at_master([this, id] { link_ended(id, false, false, "closed"); }); });
    agent.node_open = false;
    after(some(0s, 4s), [this, id] { keeper_cleans(id); });
  } else if (kind == SimulatedFault::kKeepersKilled) {  // the workers die by their death signal
    if (suspended) return false;
    for (const auto& [local, process] : agent.processes)
      die(workers_[process.worker], SimDeath::By::kFault, 0, SIGKILL);
    agent.alive = agent.node_open = false;
    after(1ms, [this, id] { at_master([this, id] { link_ended(id, false, false, "closed"); }); });
  } else if (kind == SimulatedFault::kAgentStopped) {
    if (agent.core.leaving() || suspended) return false;
    feed(agent, launcher::node::MustLeave{"stopped by SIGTERM", SIGTERM});
  } else if (kind == SimulatedFault::kAgentFrozen) {
    agent.frozen = std::max(until, agent.frozen);
  } else if (kind == SimulatedFault::kHostLost) {
    host.down = host.cut_to = host.cut_from = std::max({until, host.cut_to, host.cut_from});
    for (SimAgent& one : agents_) {
      if (one.host != agent.host || !one.alive) continue;
      for (const auto& [local, process] : one.processes)
        die(workers_[process.worker], SimDeath::By::kFault, 0, SIGKILL);
      one.alive = one.node_open = false;
    }
  } else if (kind == SimulatedFault::kMachinePaused) {
    if (suspended) return false;
    host.paused = until;
    host.cut_to = std::max(until, host.cut_to);
    host.cut_from = std::max(until, host.cut_from);
    // The other ranks wait for those of this machine, and not for ever.
    const bool too_long = until - now_ > kPauseAtMost;
    for (const auto& [local, process] : agent.processes) {
      const SimWorker& worker = workers_[process.worker];
      if (!too_long || !worker.alive || !worker.present) continue;
      attempts_[worker.present->attempt].torn = true;
      look_for_stall(worker.present->attempt);
    }
    queue_.push_back({until, 0, [this, machine = agent.host] { check_resumed(machine); }, {}}), sift();
  } else if (kind == SimulatedFault::kCut || kind == SimulatedFault::kCutToNode ||
             kind == SimulatedFault::kCutFromNode) {
    if (kind != SimulatedFault::kCutFromNode) host.cut_to = std::max(until, host.cut_to);
    if (kind != SimulatedFault::kCutToNode) host.cut_from = std::max(until, host.cut_from);
  } else if (kind == SimulatedFault::kLinkReset) {
    agent.node_open = false;
    after(1ms, [this, id] { at_master([this, id] { link_ended(id, false, false, "reset by peer"); }); });
    when_awake(id, [this, id] { feed(agents_[id], launcher::node::LinkLost{}); });
  } else if (kind == SimulatedFault::kStoreRefused) {
    host.store_refused = true;
    happened(kind, agent.host, now_ + 3600s);
    return true;
  } else {
    return false;
  }
  happened(kind, agent.host, until);
  return true;
}

bool SurvivorsWorld::befall_master(SimulatedFault kind) {
  if (kind == SimulatedFault::kStale) {
    stale();
  } else if (kind == SimulatedFault::kMasterAsleep) {
    asleep_until_ = std::max(asleep_until_, now_ + some(100ms, chance(40) ? kCutAtMost : 5s));
    // Nodes with a lease do not hear the master for this time.
    for (std::size_t host = 0; host < hosts_.size(); ++host)
      happened(kind, host, asleep_until_);
  } else if (kind == SimulatedFault::kUserStops) {
    happened(kind, 0, now_);
    at_master([this] { feed(job::UserSignal{SIGTERM}); });
  } else {
    return false;
  }
  return true;
}

/// Sends a message of an earlier incarnation, or of another attempt. It must have no effect.
void SurvivorsWorld::stale() {
  const SimAgent* agent = some_agent();
  if (agent == nullptr || !agent->greeted || !agent->master_open || asleep_until_ > now_) return;
  const bool other_incarnation = chance(40);
  const std::uint32_t attempt =
      other_incarnation ? supervisor_.nodes().attempt()
                        : supervisor_.nodes().attempt() + 1 + static_cast<std::uint32_t>(random_() % 3);
  WorkerExited exited;
  exited.attempt = attempt;
  exited.rank = agent->core.attempt().first_rank;
  exited.signal = SIGSEGV;
  const Message messages[] = {AttemptRevoked{attempt, {{0, true, 1'000'000}}},
                              AttemptEnded{attempt, 1, "x"},
                              WorkersReady{attempt},
                              WorkersGreeted{attempt},
                              WorkerInTrouble{attempt, 0, "x", {}},
                              StoreOpened{attempt, 1},
                              exited};
  const auto actions = supervisor_.step(job::FromNode{agent->host, messages[random_() % 7], now_, Time(0),
                                                      agent->incarnation + (other_incarnation ? 1U : 0U)},
                                        now_);
  if (!actions.empty()) fail("a stale message had an effect");
}

SurvivorsSetup random_survivors_setup(std::uint64_t seed) {
  std::mt19937_64 random(seed * 2 + 1);
  const auto pick = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<std::uint64_t>(to - from + 1));
  };
  SurvivorsSetup setup;
  launcher::JobSpec& spec = setup.spec;
  spec.job_id = "job";
  const int hosts = pick(1, 5);
  for (int i = 0; i < hosts; ++i) {
    remote::Host host;
    host.name = "n" + std::to_string(i);
    host.slots = pick(1, 3);
    spec.hosts.push_back(host);
  }
  spec.spares = hosts > 2 ? pick(0, 1) : 0;
  spec.max_nodes = hosts - spec.spares;
  spec.min_nodes = pick(0, 2) == 0 ? spec.max_nodes : pick(1, spec.max_nodes);
  spec.scale_up_now = pick(0, 1) == 0;
  spec.max_restarts = 1000;
  spec.start_timeout = std::chrono::seconds(pick(60, 120));
  spec.node_timeout = std::chrono::seconds(pick(5, 15));
  if (pick(0, 1) == 0) spec.master_timeout = std::chrono::seconds(pick(5, 15));
  spec.restart_backoff = std::chrono::milliseconds(pick(0, 1000));
  setup.samples = static_cast<std::uint64_t>(pick(20, 100));
  setup.batch_size = pick(1, 6);
  setup.step_time = std::chrono::milliseconds(pick(100, 1500));
  setup.mishaps = 40;
  setup.between = std::chrono::seconds(pick(5, 30));
  // The training lasts about as long as the faults.
  int ranks = 0;
  for (const remote::Host& host : spec.hosts)
    ranks += *host.slots;
  const auto steps = static_cast<std::int64_t>(setup.samples) / (ranks * setup.batch_size) + 1;
  setup.epochs = setup.mishaps * setup.between / 2 / (steps * setup.step_time) + 2;
  setup.user_may_stop = pick(0, 9) == 0;
  if (pick(0, 3) == 0) spec.fence = launcher::FenceMode::kAll;
  return setup;
}

SurvivorsSetup random_short_setup(std::uint64_t seed) {
  SurvivorsSetup setup = random_survivors_setup(seed);
  std::mt19937_64 random(seed * 2 + 1'000'001);
  const auto pick = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<std::uint64_t>(to - from + 1));
  };
  setup.spec.max_restarts = pick(0, 4);
  setup.spec.fence = pick(0, 2) == 0 ? launcher::FenceMode::kRank0 : launcher::FenceMode::kAll;
  setup.workers_rejoin = pick(0, 2) == 0;
  setup.mishaps = pick(0, 8);
  setup.between = std::chrono::seconds(pick(2, 15));
  setup.epochs = pick(2, 30);
  setup.user_may_stop = pick(0, 3) == 0;
  setup.step_time = std::chrono::milliseconds(pick(500, 3000));
  if (pick(0, 2) == 0) setup.host_faults = 1;  // survivors on an excluded host are dismissed
  return setup;
}

}  // namespace ddp::sim
