// The nodes of the Simulation, and their faults.
#include <algorithm>
#include <utility>

#include "tests/sim/simulation.h"

namespace ddp::sim {

using namespace std::chrono_literals;
using namespace rendezvous;

void Simulation::start_agent(HostNumber host) {
  Machine& machine = machines_[host];
  const auto id = static_cast<std::uint32_t>(agents_.size());
  agents_.push_back({host,
                     ++machine.is_alive,
                     Member(setup_.term, setup_.grace, local(machine, now_)),
                     true,
                     true,
                     true,
                     false,
                     false,
                     Time(0),
                     Time(0),
                     Time(0),
                     Time(-1),
                     Time(-1),
                     0,
                     {},
                     0,
                     {}});
  machine.agents.push_back(id);
  send(false, id, Word::kHello);
  notify_member(id, Member::Tick{});
}

void Simulation::at_node(const Event& event) {
  SimulatedAgent& agent = agents_[event.id];
  if (!agent.alive || !agent.node_open) return;
  switch (event.word) {
    case Word::kRun:
      if (agent.world_hash != world_hashes_[event.attempt])
        fail("the nodes of attempt " + std::to_string(event.attempt) + " got different worlds");
      return notify_member(event.id, Member::Run{event.attempt});
    case Word::kStop:
      return notify_member(event.id, Member::Stop{event.attempt, setup_.grace});
    case Word::kPing:
      return notify_member(event.id, Member::Pinged{});
    case Word::kLeave:
      return notify_member(event.id, Member::Leave{});
    case Word::kEnd:
    case Word::kEndDead:
      agent.node_open = false;
      return notify_member(event.id, Member::LinkLost{});
    case Word::kHello:
    case Word::kPong:
    case Word::kEnded:
    case Word::kFailed:
      break;
  }
}

void Simulation::notify_member(std::uint32_t id, const Member::Event& event) {
  SimulatedAgent& agent = agents_[id];
  if (!agent.alive) return;
  const Machine& machine = machines_[agent.host];
  for (const Member::Action& action : agent.member.step(event, local(machine, now_))) {
    if (const auto* start = std::get_if<Member::StartWorkers>(&action)) {
      agent.attempt = start->attempt;
      start_workers(id);
    } else if (const auto* end = std::get_if<Member::EndWorkers>(&action)) {
      // Most workers end on request.
      const Time takes = chance(70) ? some(0s, end->grace) : end->grace;
      push(now_ + takes, Kind::kWorkersDie, id, end->attempt);
    } else if (const auto* ended = std::get_if<Member::SayEnded>(&action)) {
      if (agent.node_open) send(false, id, Word::kEnded, ended->attempt);
    } else if (std::holds_alternative<Member::SayPong>(action)) {
      send(false, id, Word::kPong);
    } else if (std::holds_alternative<Member::Quit>(action)) {
      agent.alive = false;
      if (std::exchange(agent.node_open, false)) send(false, id, Word::kEndDead);
      // If a scheduler keeps the nodes' programs alive, they join again.
      if (setup_.rules.open) push(now_ + some(500ms, 3s), Kind::kAgentStart, agent.host);
      return;
    }
  }
  if (const auto due = agent.member.deadline()) {
    const Time at = global(machine, *due);
    if (agent.tick_at < 0s || at < agent.tick_at) push(agent.tick_at = at, Kind::kMemberTick, id);
  }
  if (const auto due = agent.member.keeper_kills_at(); due && agent.keeper_at < 0s)
    push(agent.keeper_at = global(machine, *due), Kind::kKeeper, id);
}

void Simulation::start_workers(std::uint32_t id) {
  SimulatedAgent& agent = agents_[id];
  for (int i = 0; i < agent.assignment.local_world_size; ++i) {
    const auto rank = static_cast<std::uint32_t>(agent.assignment.first_rank + i);
    agent.ranks.push_back(rank);
    worker_processes(id, rank);
    push(now_ + setup_.work + some(0s, 200ms), Kind::kWorkerDone, id, agent.attempt, rank);
  }
}

void Simulation::kill_workers(SimulatedAgent& agent) {
  if (!agent.ranks.empty()) spoilt_[agent.attempt] = true;
  if (!machines_[agent.host].paused_now)
    for (const std::uint32_t rank : agent.ranks)
      worker_is_gone(agent, rank);
  agent.ranks.clear();
}

void Simulation::worker_done(const Event& event) {
  SimulatedAgent& agent = agents_[event.id];
  const auto found = std::find(agent.ranks.begin(), agent.ranks.end(), event.number);
  if (agent.attempt != event.attempt || found == agent.ranks.end() || spoilt_[event.attempt]) return;
  agent.ranks.erase(found);
  worker_is_gone(agent, event.number);
  if (!agent.ranks.empty()) return;
  // The agent reaps the workers when it runs.
  push(std::max(now_, agent.frozen), Kind::kWorkersDie, event.id, event.attempt);
}

void Simulation::fault(const Event& event) {
  Machine& machine = machines_[event.id];
  const Time until = now_ + event.lasts;
  // Only live agents of the machine take part.
  std::vector<std::uint32_t> live_ones;
  for (const std::uint32_t id : machine.agents)
    if (agents_[id].alive) live_ones.push_back(id);
  switch (static_cast<Fault>(event.number)) {
    case Fault::kCrash:
      if (machine.paused_now) return;
      machine.cut_from = machine.cut_to = std::max(until, machine.cut_to);
      for (const std::uint32_t id : live_ones) {
        kill_workers(agents_[id]);
        agents_[id].alive = agents_[id].node_open = false;
        // After the restart the machine's kernel resets the connection if a packet arrives.
        if (chance(50)) queue_.push({until, order_++, Kind::kToMaster, Word::kEnd, id, 0, 0, Time(0)});
      }
      if (setup_.rules.open) push(until + some(0s, 1s), Kind::kAgentStart, event.id);
      break;
    case Fault::kAgentKilled:
      for (const std::uint32_t id : live_ones)
        push(now_ + some(0s, setup_.kill), Kind::kKeeperKilled, id);
      break;
    case Fault::kAgentFrozen:
      for (const std::uint32_t id : live_ones)
        agents_[id].frozen = std::max(agents_[id].frozen, until);
      break;
    case Fault::kMachinePaused:
      if (machine.paused_now) return;
      for (const std::uint32_t id : live_ones)
        for (const std::uint32_t rank : agents_[id].ranks)
          worker_is_gone(agents_[id], rank);
      machine.paused = until;
      machine.paused_now = true;
      queue_.push({until, 1, Kind::kResume, Word::kEnd, event.id, 0, 0, Time(0)});
      break;
    case Fault::kMasterFrozen:
      master_frozen_ = std::max(master_frozen_, until);
      break;
    case Fault::kCut:
      machine.cut_from = machine.cut_to = until;
      break;
    case Fault::kCutFromNode:
      machine.cut_from = until;
      break;
    case Fault::kCutToNode:
      machine.cut_to = until;
      break;
    case Fault::kLinkReset:
      for (const std::uint32_t id : live_ones) {
        send(false, id, Word::kEnd);
        send(true, id, Word::kEnd);
      }
      break;
    case Fault::kWorkerFails:
      for (const std::uint32_t id : live_ones) {
        SimulatedAgent& agent = agents_[id];
        if (agent.ranks.empty() || machine.paused_now || agent.frozen > now_) continue;
        const std::uint32_t rank = agent.ranks.back();
        agent.ranks.pop_back();
        worker_is_gone(agent, rank);
        spoilt_[agent.attempt] = true;
        if (agent.node_open) send(false, id, Word::kFailed, agent.attempt, rank);
        if (agent.ranks.empty()) push(now_, Kind::kWorkersDie, id, agent.attempt);
      }
      break;
    case Fault::kStale:
      stale();
      break;
    case Fault::kUserStops:
      notify_master({}, UserStop{"stopped by SIGINT"});
      break;
  }
}

/// Sends a message of another job, an earlier incarnation, or another attempt. It must have no effect.
void Simulation::stale() {
  if (agents_.empty() || report_.ended || master_frozen_ > now_) return;
  const SimulatedAgent& agent = agents_[random_() % agents_.size()];
  Sender from = sender(agent, membership_.attempt());
  switch (random_() % 3) {
    case 0:
      from.job = "another";
      break;
    case 1:
      --from.incarnation;
      break;
    case 2:
      ++from.attempt;
      break;
  }
  // Skip the incarnation of an agent whose hello is still under way: the sender then equals the current one.
  if (from.job == setup_.rules.job && from.attempt == membership_.attempt() &&
      from.incarnation == membership_.incarnation(from.host))
    return;
  const MemberEvent events[] = {WorkerFailed{"stale"}, NodeEnded{1}, NodeRefused{"stale"}, AttemptProgress{}};
  const auto actions = membership_.step(from, events[random_() % 4], now_);
  if (!actions.empty()) fail("a stale message had an effect");
}

Setup random_setup(std::uint64_t seed) {
  std::mt19937_64 random(seed * 2 + 1);
  const auto pick = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<std::uint64_t>(to - from + 1));
  };
  Setup setup;
  MembershipRules& rules = setup.rules;
  rules.job = "job";
  const int hosts = pick(1, 6);
  for (int i = 0; i < hosts; ++i) {
    rules.hosts.push_back("n" + std::to_string(i));
    setup.slots.push_back(pick(1, 3));
  }
  rules.max_nodes = pick(1, hosts);
  rules.min_nodes = pick(0, 1) == 0 ? rules.max_nodes : pick(1, rules.max_nodes);
  rules.spares = hosts - rules.max_nodes;
  rules.recall = pick(0, 1) == 0;
  rules.open = !rules.recall;
  rules.max_restarts = pick(0, 4);
  rules.scale_up_now = pick(0, 1) == 0;
  rules.suspect_after = 1s;
  rules.node_timeout = std::chrono::milliseconds(pick(2000, 5000));
  setup.term = std::chrono::milliseconds(pick(2000, 5000));
  setup.grace = std::chrono::milliseconds(pick(100, 2000));
  setup.kill = std::chrono::milliseconds(pick(50, 1000));
  setup.drift_ppm = pick(0, 500);
  rules.lease = setup.term + setup.grace + setup.kill;
  rules.lease += rules.lease / 1000 + 1ms;
  rules.stop_time = setup.grace + setup.kill + 2s;
  rules.join_limit = std::chrono::seconds(pick(10, 40));
  rules.admission_window = 2s;
  rules.backoff = std::chrono::milliseconds(pick(1, 1000));
  rules.recall_every = 1s;
  rules.host_faults = pick(0, 3);
  rules.cool_down = std::chrono::seconds(pick(5, 60));
  rules.fruitful_after = 10s;
  setup.work = std::chrono::milliseconds(pick(500, 20'000));
  setup.min_delay = std::chrono::microseconds(pick(10, 1000));
  setup.max_delay = setup.min_delay + std::chrono::milliseconds(pick(0, 9) == 0 ? 600 : pick(1, 50));
  setup.faults = pick(0, 10);
  setup.fault_time = std::chrono::seconds(pick(5, 40));
  return setup;
}

}  // namespace ddp::sim
