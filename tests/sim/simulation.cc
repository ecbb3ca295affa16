#include "tests/sim/simulation.h"

#include <algorithm>
#include <utility>

namespace ddp::sim {

using namespace std::chrono_literals;
using namespace rendezvous;

namespace {

/// A connection that delivers nothing for this time is broken.
constexpr Time kTcpPatience = 20s;
constexpr Time kLongest = 3600s;

std::size_t hash_of(const World& world) {
  std::size_t hash = 1469598103934665603U;
  for (const RankAssignment& assignment : world.assignments)
    for (const int part : {static_cast<int>(assignment.host), assignment.node_rank, assignment.first_rank,
                           assignment.local_world_size})
      hash = (hash ^ static_cast<std::size_t>(part)) * 1099511628211U;
  return hash;
}

MembershipRules with_bug(MembershipRules rules, InjectedBug bug) {
  if (bug == InjectedBug::kNoLease) rules.lease = Time(0);
  if (bug == InjectedBug::kOneNodeLess) rules.min_nodes = std::max(1, rules.min_nodes - 1);
  if (bug == InjectedBug::kFreeRestarts) rules.max_restarts += 1;
  return rules;
}

}  // namespace

Simulation::Simulation(Setup setup, std::uint64_t seed)
    : setup_(std::move(setup)), random_(seed), membership_(with_bug(setup_.rules, setup_.bug)) {
  machines_.resize(setup_.slots.size());
  for (Machine& machine : machines_) {
    machine.offset = some(0s, 1000s);
    machine.ppm =
        setup_.drift_ppm == 0
            ? 0
            : static_cast<std::int64_t>(random_() % static_cast<unsigned>(2 * setup_.drift_ppm + 1)) -
                  setup_.drift_ppm;
  }
  for (std::uint32_t host = 0; host < machines_.size(); ++host)
    push(some(0s, 2s), Kind::kAgentStart, host);
  for (int i = 0; i < setup_.faults; ++i) {
    auto kind = static_cast<std::uint32_t>(random_() % kFaults);
    if (kind == static_cast<std::uint32_t>(Fault::kUserStops) && !chance(10))
      kind = static_cast<std::uint32_t>(Fault::kStale);
    const auto host = static_cast<std::uint32_t>(random_() % machines_.size());
    push(some(0s, setup_.fault_time), Kind::kFault, host, 0, kind, Word::kEnd,
         some(100ms, chance(30) ? 40s : 5s));
  }
  push(0s, Kind::kMasterTick, 0);
  push(1s, Kind::kPing, 0);
}

void Simulation::plan(Fault fault, HostNumber host, Time at, Time lasts) {
  push(at, Kind::kFault, host, 0, static_cast<std::uint32_t>(fault), Word::kEnd, lasts);
}

SimulationReport Simulation::run() {
  const Time after = 2 * setup_.rules.lease + setup_.kill + 60s;
  while (!queue_.empty() && !report_.broken) {
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    if (report_.ended && now_ > report_.time + after) break;
    if (now_ > kLongest) {
      fail("the run does not end");
      break;
    }
    ++report_.events;
    if (!held_back(event)) handle(event);
  }
  if (!report_.broken) check_end();
  report_.restarts = membership_.restarts();
  return report_;
}

// ---- time and network

void Simulation::push(Time at, Kind kind, std::uint32_t id, std::uint32_t attempt, std::uint32_t number,
                      Word word, Time lasts) {
  queue_.push({at, order_++, kind, word, id, attempt, number, lasts});
}

Time Simulation::some(Time from, Time to) {
  return from +
         Time(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>((to - from).count() + 1)));
}

Time Simulation::local(const Machine& machine, Time at) const {
  return machine.offset + at + Time(at.count() / 1'000'000 * machine.ppm);
}

/// Returns the first moment at which the machine's clock shows `at`, or a little later.
Time Simulation::global(const Machine& machine, Time at) const {
  const Time since = at - machine.offset;
  Time guess = since - Time(since.count() / 1'000'000 * machine.ppm);
  while (local(machine, guess) < at)
    guess += std::max(Time(1), at - local(machine, guess));
  return guess;
}

/// Delivers in order on each link. A message that meets a cut waits until the cut ends. A message that waits
/// too long breaks the link, which only the sender learns.
void Simulation::send(bool to_node, std::uint32_t id, Word word, std::uint32_t attempt,
                      std::uint32_t number) {
  SimulatedAgent& agent = agents_[id];
  const Machine& machine = machines_[agent.host];
  const Time cut = to_node ? machine.cut_to : machine.cut_from;
  if (cut > now_ + kTcpPatience) {
    // Each end learns of the break separately.
    queue_.push({now_ + kTcpPatience, order_++, to_node ? Kind::kToMaster : Kind::kToNode, Word::kEnd, id, 0,
                 0, Time(0)});
    return;
  }
  Time& last = to_node ? agent.last_to_node : agent.last_to_master;
  last = std::max(last, std::max(now_, cut) + some(setup_.min_delay, setup_.max_delay));
  queue_.push(
      {last, order_++, to_node ? Kind::kToNode : Kind::kToMaster, word, id, attempt, number, Time(0)});
}

/// A frozen process handles all its events when it wakes; its keeper's timer comes first.
bool Simulation::held_back(const Event& event) {
  Event later = event;
  switch (event.kind) {
    case Kind::kToMaster:
    case Kind::kMasterTick:
    case Kind::kPing:
    case Kind::kRecallAnswer:
      later.at = master_frozen_;
      break;
    case Kind::kToNode:
    case Kind::kMemberTick:
    case Kind::kWorkersDie:
      later.at = std::max(agents_[event.id].frozen, machines_[agents_[event.id].host].paused);
      break;
    case Kind::kKeeper:
    case Kind::kKeeperKilled:
      later.at = machines_[agents_[event.id].host].paused;
      if (later.at > now_) later.order = 0;
      break;
    case Kind::kWorkerDone:
      later.at = machines_[agents_[event.id].host].paused;
      break;
    case Kind::kAgentStart:
      later.at = machines_[event.id].paused;
      break;
    case Kind::kFault:
    case Kind::kResume:
      return false;
  }
  if (later.at <= now_) return false;
  if (later.order != 0) later.order = order_++;
  queue_.push(later);
  return true;
}

void Simulation::handle(const Event& event) {
  switch (event.kind) {
    case Kind::kToNode:
      return at_node(event);
    case Kind::kToMaster:
      return at_master(event);
    case Kind::kMasterTick:
      master_tick_ = Time(-1);
      if (setup_.bug != InjectedBug::kNoTicks || now_ == 0s) notify_master({}, Tick{});
      return;
    case Kind::kPing:
      return ping();
    case Kind::kMemberTick:
      agents_[event.id].tick_at = Time(-1);
      return notify_member(event.id, Member::Tick{});
    case Kind::kKeeper: {
      SimulatedAgent& agent = agents_[event.id];
      agent.keeper_at = Time(-1);
      if (!agent.alive) return;
      const Machine& machine = machines_[agent.host];
      const auto due = agent.member.keeper_kills_at();
      if (due && local(machine, now_) >= *due) {
        // On a machine that was paused past the deadline, the keeper runs before anything else.
        const Time kill = event.order == 0 ? Time(0) : some(0s, setup_.kill);
        queue_.push({now_ + kill, event.order == 0 ? 0 : order_++, Kind::kKeeperKilled, Word::kEnd, event.id,
                     0, 0, Time(0)});
      } else if (due) {
        agent.keeper_at = global(machine, *due);
        push(agent.keeper_at, Kind::kKeeper, event.id);
      }
      return;
    }
    case Kind::kKeeperKilled: {
      SimulatedAgent& agent = agents_[event.id];
      if (!agent.alive) return;
      kill_workers(agent);
      agent.alive = agent.node_open = false;
      send(false, event.id, Word::kEndDead);
      if (setup_.rules.open) push(now_ + some(500ms, 3s), Kind::kAgentStart, agent.host);
      return;
    }
    case Kind::kWorkerDone:
      return worker_done(event);
    case Kind::kWorkersDie: {
      SimulatedAgent& agent = agents_[event.id];
      if (!agent.alive || agent.attempt != event.attempt || !agent.member.running()) return;
      kill_workers(agent);
      return notify_member(event.id, Member::WorkersGone{event.attempt});
    }
    case Kind::kFault:
      return fault(event);
    case Kind::kResume: {
      Machine& machine = machines_[event.id];
      if (now_ < machine.paused || !std::exchange(machine.paused_now, false)) return;
      for (const std::uint32_t id : machine.agents)
        for (const std::uint32_t rank : agents_[id].ranks)
          worker_processes(id, rank);
      return;
    }
    case Kind::kAgentStart:
      if (!report_.ended) start_agent(event.id);
      return;
    case Kind::kRecallAnswer: {
      const Machine& machine = machines_[event.id];
      const bool reached = std::max(machine.cut_from, machine.cut_to) <= now_ && machine.paused <= now_;
      if (reached && !report_.ended) return start_agent(event.id);
      return notify_master({setup_.rules.job, 0, event.id, 0}, Absent{"no route to host"});
    }
  }
}

// ---- the master

Sender Simulation::sender(const SimulatedAgent& agent, std::uint32_t attempt) const {
  return {setup_.rules.job, attempt, agent.host, agent.incarnation};
}

void Simulation::notify_master(const Sender& from, const MemberEvent& event) {
  if (report_.ended) return;
  for (const MemberAction& action : membership_.step(from, event, now_))
    carry_out(action);
  const auto due = membership_.deadline();
  if (due && (master_tick_ < 0s || *due < master_tick_)) {
    master_tick_ = std::max(*due, now_);
    push(master_tick_, Kind::kMasterTick, 0);
  }
  if (membership_.restarts() > setup_.rules.max_restarts)
    fail("restart " + std::to_string(membership_.restarts()) + " of " +
         std::to_string(setup_.rules.max_restarts));
}

void Simulation::carry_out(const MemberAction& action) {
  if (const auto* start = std::get_if<Begin>(&action)) {
    begin(*start);
  } else if (const auto* stop = std::get_if<StopAttempt>(&action)) {
    growths_ += stop->cause == StopCause::kScaleUp;
    for (const std::uint32_t id : participants_)
      if (agents_[id].master_open) send(true, id, Word::kStop, stop->attempt);
  } else if (const auto* drop = std::get_if<Drop>(&action)) {
    for (const std::uint32_t id : machines_[drop->host].agents) {
      if (agents_[id].incarnation != drop->incarnation || !std::exchange(agents_[id].master_open, false))
        continue;
      send(true, id, Word::kEnd);
    }
  } else if (const auto* recall = std::get_if<RecallHost>(&action)) {
    push(now_ + some(300ms, 2s), Kind::kRecallAnswer, recall->host);
  } else if (const auto* ended = std::get_if<EndJob>(&action)) {
    report_.ended = true;
    report_.outcome = ended->outcome;
    report_.reason = ended->reason;
    report_.time = now_;
    for (std::uint32_t id = 0; id < agents_.size(); ++id)
      if (agents_[id].master_open) send(true, id, Word::kLeave);
  }
}

void Simulation::begin(const Begin& action) {
  const auto nodes = static_cast<int>(action.world.assignments.size());
  if (alive_all_ > 0)
    fail("attempt " + std::to_string(action.attempt) + " begins while " + std::to_string(alive_all_) +
         " workers of others live");
  if (nodes < setup_.rules.min_nodes || nodes > setup_.rules.max_nodes)
    fail("attempt " + std::to_string(action.attempt) + " begins with " + std::to_string(nodes) + " nodes");
  if (action.attempt != world_hashes_.size()) fail("attempt numbers have gaps");
  if (report_.attempts == 0) report_.began = now_;
  if (++report_.attempts > 1 + setup_.rules.max_restarts + growths_)
    fail("more attempts than the budget allows");
  world_hashes_.push_back(hash_of(action.world));
  alive_.push_back(0);
  spoilt_.push_back(false);
  owner_.resize(std::max(owner_.size(), static_cast<std::size_t>(action.world.world_size)), 0);
  participants_.clear();
  for (const RankAssignment& assignment : action.world.assignments) {
    const std::uint32_t id = link_of(assignment.host);
    if (!agents_[id].master_open) fail("a node whose link is closed is in the attempt");
    participants_.push_back(id);
    agents_[id].assignment = assignment;
    agents_[id].world_hash = world_hashes_.back();
    if (setup_.bug == InjectedBug::kWorldDiffers && nodes > 1 && assignment.node_rank == nodes - 1)
      ++agents_[id].world_hash;
    send(true, id, Word::kRun, action.attempt);
  }
}

std::uint32_t Simulation::link_of(HostNumber host) const {
  const auto& agents = machines_[host].agents;
  return *std::find_if(agents.rbegin(), agents.rend(), [&](std::uint32_t id) {
    return agents_[id].incarnation == membership_.incarnation(host);
  });
}

void Simulation::at_master(const Event& event) {
  SimulatedAgent& agent = agents_[event.id];
  Sender from = sender(agent, event.attempt);
  if (setup_.bug == InjectedBug::kLateBelieved && event.word != Word::kHello) {
    from.attempt = membership_.attempt();
    from.incarnation = membership_.incarnation(agent.host);
  } else if (!agent.master_open) {
    return;
  }
  switch (event.word) {
    case Word::kHello:
      agent.joined = true;
      return notify_master(from, Joined{setup_.slots[agent.host], {}});
    case Word::kPong:
      agent.ping_owed = false;
      return notify_master(from, Heartbeat{});
    case Word::kEnded:
      notify_master(from, Heartbeat{});
      return notify_master(from, NodeEnded{});
    case Word::kFailed:
      notify_master(from, Heartbeat{});
      return notify_master(from, WorkerFailed{"rank " + std::to_string(event.number) + " exited 1"});
    case Word::kEnd:
    case Word::kEndDead:
      agent.master_open = false;
      return notify_master(from, LinkLost{"the link ended", event.word == Word::kEndDead});
    case Word::kRun:
    case Word::kStop:
    case Word::kPing:
    case Word::kLeave:
      break;
  }
}

void Simulation::ping() {
  if (report_.ended) return;
  for (std::uint32_t id = 0; id < agents_.size(); ++id) {
    SimulatedAgent& agent = agents_[id];
    if (!agent.master_open || !agent.joined) continue;
    if (std::exchange(agent.ping_owed, true) && setup_.bug != InjectedBug::kPingsUnasked) continue;
    send(true, id, Word::kPing);
  }
  push(now_ + std::min<Time>(1s, setup_.term / 5), Kind::kPing, 0);
}

// ---- invariants

void Simulation::fail(const std::string& what) {
  if (report_.broken) return;
  report_.broken = what + ", after " + std::to_string(now_ / 1ms) + " ms";
}

void Simulation::worker_processes(std::uint32_t id, std::uint32_t rank) {
  const SimulatedAgent& agent = agents_[id];
  if (std::exchange(owner_[rank], id + 1) != 0) fail("rank " + std::to_string(rank) + " has two owners");
  ++alive_[agent.attempt];
  if (++alive_all_ != alive_[agent.attempt])
    fail("a worker of attempt " + std::to_string(agent.attempt) + " runs beside those of another");
  if (agent.attempt + 1 != world_hashes_.size())
    fail("a worker of attempt " + std::to_string(agent.attempt) + " runs, although a later one has begun");
}

void Simulation::worker_is_gone(const SimulatedAgent& agent, std::uint32_t rank) {
  owner_[rank] = 0;
  --alive_[agent.attempt];
  --alive_all_;
}

void Simulation::check_end() {
  if (!report_.ended) fail("nothing happens any more, and the job has not ended");
  if (alive_all_ > 0) fail(std::to_string(alive_all_) + " workers live although the job has ended");
  if (report_.outcome == Outcome::kDone && report_.attempts == 0) fail("done without an attempt");
}

}  // namespace ddp::sim
