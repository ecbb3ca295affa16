// The nodes of the simulation: the drivers of their agents' cores, as Agent is one, and
// their keepers.
#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/survivors_world.h"

namespace ddp::sim {

using namespace std::chrono_literals;
using namespace rendezvous;
namespace node = launcher::node;

namespace {

constexpr Time kTcpPatience = 60s;
constexpr Time kLinkGrace = 5s;
constexpr Time kKillBound = 5s;
constexpr Time kKeeperKills = 4s;
constexpr Time kHeartbeat = 1s;
constexpr std::uint32_t kAgentPids = 1'000'000'000;  ///< PIDs below are the workers'

std::uint32_t agent_pid(std::uint32_t agent) {
  return kAgentPids + agent * 2;  // the next PID is the keeper's
}

/// Returns whether AgentCore must end workers whose lease is over when it handles this event. Other events
/// may be handled before the next heartbeat.
bool checks_lease(const node::Event& event) {
  return std::holds_alternative<node::HeartbeatDue>(event) || std::holds_alternative<node::Pinged>(event) ||
         std::holds_alternative<OpenStore>(event) || std::holds_alternative<Revoke>(event) ||
         std::holds_alternative<Stop>(event);
}

}  // namespace

// ---- the link

void SurvivorsWorld::start_agent(std::size_t host, std::uint32_t incarnation) {
  const auto id = static_cast<std::uint32_t>(agents_.size());
  launcher::AgentCore core({false, kKillBound, launcher::node_lease(setup_.spec), kLinkGrace},
                           hosts_[host].local(now_));
  SimAgent& agent = agents_.emplace_back(id, host, incarnation, std::move(core));
  hosts_[host].agents.push_back(id);
  agent.heard = now_;
  Hello hello;
  hello.hostname = hello.machine_id = "m" + std::to_string(host);
  hello.pid = agent_pid(id);
  hello.keeper = hello.pid + 1;
  hello.pid_namespace = 1;
  hello.cpus = 4;
  hello.interfaces = {
      {"lo", "127.0.0.1", 8, true, true},
      {"eth0", "10.0." + std::to_string(host / 250) + "." + std::to_string(host % 250 + 1), 16, true, false}};
  to_master(agent, hello);
  heartbeat(id);
}

/// Computes when a message arrives: in order. The first one that a cut drops is resent after 0.2 s, and then
/// each time after twice as long (RFC 6298); the others wait for it. Returns false if the connection breaks
/// before.
bool SurvivorsWorld::delayed(Time cut, Time& last, Time& at) {
  if (cut > now_ + kTcpPatience) return false;
  Time sent = now_;
  if (last < now_) {
    for (Time wait = 200ms; sent < cut; wait *= 2)
      sent += wait;
  }
  last = at = std::max(last, sent + some(100us, chance(5) ? 300ms : 3ms));
  return true;
}

void SurvivorsWorld::to_node(SimAgent& agent, Message message) {
  if (std::holds_alternative<Spawn>(message) && armed_.erase(SimulatedFault::kFrozenOnSpawn) != 0) {
    agent.frozen = std::max(agent.frozen, now_ + some(1s, 20s));
    happened(SimulatedFault::kFrozenOnSpawn, agent.host, agent.frozen);
  }
  Time at;
  const std::uint32_t id = agent.id;
  if (!delayed(hosts_[agent.host].cut_to, agent.to_node, at)) {
    return after(kTcpPatience,
                 [this, id] { at_master([this, id] { link_ended(id, false, false, "timed out"); }); });
  }
  after(at - now_, [this, id, message = std::move(message)] {
    when_awake(id, [this, id, message] {
      SimAgent& there = agents_[id];
      if (!there.alive || !there.node_open) return;
      there.heard = now_;
      receive(there, message);
    });
  });
}

void SurvivorsWorld::to_master(SimAgent& agent, Message message) {
  if (!agent.alive || !agent.node_open) return;
  Time at;
  const std::uint32_t id = agent.id;
  if (!delayed(hosts_[agent.host].cut_from, agent.to_master, at)) {
    return after(kTcpPatience, [this, id] {
      when_awake(id, [this, id] {
        if (agents_[id].node_open) feed(agents_[id], node::LinkLost{});
      });
    });
  }
  after(at - now_, [this, id, happened = now_, message = std::move(message)] {
    at_master([this, id, happened, message] { from_node(id, message, happened); });
  });
}

/// Returns the first moment at which the clock of the agent's machine shows `local`, or a little later.
Time SurvivorsWorld::global(const SimAgent& agent, Time local) const {
  const SimHost& host = hosts_[agent.host];
  const Time since = local - host.offset;
  Time guess = since - Time(since.count() / 1'000'000 * host.ppm);
  while (host.local(guess) < local)
    guess += std::max(Time(1), local - host.local(guess));
  return guess;
}

/// A frozen agent, or one on a suspended machine, handles all its events in order when it wakes.
void SurvivorsWorld::when_awake(std::uint32_t id, Act act) {
  const SimHost& host = hosts_[agents_[id].host];
  const Time until = std::max(agents_[id].frozen, host.paused);
  if (until <= now_) return act();
  after_on(agents_[id].host, until - now_, [this, id, act = std::move(act)] { when_awake(id, act); });
}

// ---- the driver

void SurvivorsWorld::receive(SimAgent& agent, const Message& message) {
  if (const auto* start = std::get_if<JobStart>(&message)) {
    feed(agent, node::JobReceived{std::chrono::milliseconds(start->master_timeout_ms), kLinkGrace});
    feed(agent, node::JobAccepted{false});
    to_master(agent, JobAccepted{"/bin/train", {}, "", predecessor_gone(start->predecessor)});
  } else if (const auto* probe = std::get_if<Probe>(&message)) {
    to_master(agent, ProbeResult{probe->attempt, probe->addresses.front(), "", ""});
  } else if (const auto* ping = std::get_if<Ping>(&message)) {
    to_master(agent, Pong{ping->sequence, 0});
    feed(agent, node::Pinged{});
  } else if (const auto* open = std::get_if<OpenStore>(&message)) {
    feed(agent, *open);
  } else if (const auto* spawn = std::get_if<Spawn>(&message)) {
    feed(agent, *spawn);
  } else if (const auto* revoke = std::get_if<Revoke>(&message)) {
    feed(agent, *revoke);
  } else if (const auto* stop = std::get_if<Stop>(&message)) {
    feed(agent, *stop);
  } else if (const auto* leave = std::get_if<Leave>(&message)) {
    feed(agent, *leave);
  }
}

void SurvivorsWorld::feed(SimAgent& agent, const node::Event& event) {
  if (!agent.alive) return;
  const std::uint32_t id = agent.id;
  const bool overdue = checks_lease(event) && agent.core.running() && is_lease_over(agent);
  const Time local = hosts_[agent.host].local(now_);
  const Time previous = std::exchange(agent.last_event, local);
  const node::Actions actions =
      agent.core.step(event, setup_.bug == SurvivorsBug::kClockBehind ? previous : local);
  if (overdue && !agent.core.leaving())
    fail(supervisor_.nodes()[agent.host].name + " does not stop its workers after the end of its lease");
  for (const node::Action& action : actions)
    std::visit([this, &agent](const auto& one) { perform(agent, one); }, action);
  const auto due = agent.core.deadline();
  if (!due || !agent.alive) return;
  const Time at = std::max(global(agent, *due), now_);
  if (agent.tick_at && *agent.tick_at <= at) return;
  agent.tick_at = at;
  after_on(agent.host, at - now_, [this, id] {
    when_awake(id, [this, id] {
      agents_[id].tick_at.reset();
      feed(agents_[id], node::Tick{});
    });
  });
}

bool SurvivorsWorld::is_lease_over(const SimAgent& agent) const {
  return agent.core.lease().over(hosts_[agent.host].local(now_));
}

void SurvivorsWorld::feed_later(std::uint32_t id, Time wait, node::Event event) {
  after_on(agents_[id].host, wait, [this, id, event = std::move(event)] {
    when_awake(id, [this, id, event] { feed(agents_[id], event); });
  });
}

void SurvivorsWorld::perform(SimAgent& agent, const node::Send& action) {
  to_master(agent, action.message);
  if (std::holds_alternative<AttemptRevoked>(action.message))
    kill_one_of(SimulatedFault::kKilledWaiting, agent.id);
}

/// Agent and keeper end together in this simulation.
bool SurvivorsWorld::predecessor_gone(const std::vector<std::uint32_t>& pids) const {
  if (setup_.bug == SurvivorsBug::kPredecessorUnseen) return !pids.empty();
  const bool any_alive = std::any_of(pids.begin(), pids.end(), [this](std::uint32_t pid) {
    return pid < kAgentPids ? workers_[pid - 1].alive : agents_[(pid - kAgentPids) / 2].alive;
  });
  return !pids.empty() && !any_alive;
}

void SurvivorsWorld::perform(SimAgent& agent, const node::OpenStore& action) {
  if (std::exchange(hosts_[agent.host].store_refused, false)) {
    return to_master(agent, Refused{ErrorCode::kRefused, 0, "no port is free"});
  }
  after(some(0s, 5ms), [this, id = agent.id, attempt = action.order.attempt] {
    when_awake(id, [this, id, attempt] { to_master(agents_[id], StoreOpened{attempt, 29500}); });
  });
}

// ---- workers start

void SurvivorsWorld::perform(SimAgent& agent, const node::PrepareAttempt& action) {
  if (is_lease_over(agent))
    fail(supervisor_.nodes()[agent.host].name + " begins attempt " + std::to_string(action.spawn.attempt) +
         " after the end of its lease");
  agent.prepared = action.spawn;
  for (std::uint32_t local = 0; local < action.spawn.local_world_size; ++local)
    if (agent.processes.count(local) == 0) agent.processes[local] = {};
  feed(agent, node::AttemptPrepared{});
}

void SurvivorsWorld::perform(SimAgent& agent, const node::OrderAttempt& action) {
  agent.processes.at(action.local).session.begin(action.order);
  if (agent.core.processes().is_alive(action.local)) flush(agent, action.local);
}

void SurvivorsWorld::perform(SimAgent& agent, const node::StartWorkers&) {
  for (std::uint32_t local = 0; local < agent.prepared->local_world_size; ++local)
    if (!agent.core.processes().is_alive(local)) start_worker(agent, local);
  agent.starting = true;
  after_on(agent.host, chance(90) ? Time(0) : some(0s, 2s), [this, id = agent.id] {
    when_awake(id, [this, id] {
      agents_[id].starting = false;
      feed(agents_[id], node::WorkersStarted{});
      check_ended(agents_[id]);
    });
  });
}

void SurvivorsWorld::check_ended(SimAgent& agent) {
  if (agent.processes.empty() && !agent.starting)
    feed_later(agent.id, some(0ms, 100ms), node::WorkersEnded{});
}

void SurvivorsWorld::start_worker(SimAgent& agent, std::uint32_t local) {
  for (const std::uint32_t other : hosts_[agent.host].agents)
    for (const auto& [rank, process] : agents_[other].processes)
      if (other != agent.id && workers_[process.worker].alive)
        fail("workers are started on " + supervisor_.nodes()[agent.host].name + ", where others still live");
  const auto id = static_cast<std::uint32_t>(workers_.size());
  SimWorker& worker = workers_.emplace_back();
  worker.id = id;
  worker.agent = agent.id;
  worker.local = local;
  agent.processes.at(local).worker = id;
  feed(agent, node::WorkerStarted{local, id + 1, 0});
  after_on(worker, some(10ms, 400ms), [this, id] {
    SimWorker& started = workers_[id];
    if (!started.alive || started.frozen) return;
    say(started, WorkerHello{kWorkerProtocol, id + 1, setup_.workers_rejoin, false});
    after_on(started, some(0ms, 3s), [this, id] {  // the worker loads its data
      if (workers_[id].alive && !workers_[id].frozen) next_attempt(workers_[id]);
    });
  });
}

void SurvivorsWorld::flush(SimAgent& agent, std::uint32_t local) {
  SimAgent::Process& process = agent.processes.at(local);
  std::string bytes = process.session.take_output();
  if (bytes.empty()) return;
  after_on(agent.host, kSimLineTime,
           [this, id = process.worker, bytes = std::move(bytes)] { hear(workers_[id], bytes); });
}

void SurvivorsWorld::worker_says(std::uint32_t id, std::uint32_t local, std::uint32_t worker,
                                 const std::string& line) {
  SimAgent& agent = agents_[id];
  const auto found = agent.processes.find(local);
  if (!agent.alive || found == agent.processes.end() || found->second.worker != worker) return;
  for (const WorkerEvent& event : found->second.session.receive(line)) {
    if (const auto* hello = std::get_if<WorkerHello>(&event)) {
      feed(agent, node::WorkerGreeted{local, hello->rejoin && !hello->sharded});
    } else if (std::holds_alternative<rendezvous::WorkerReady>(event)) {
      feed(agent, node::WorkerReady{local});
    } else if (const auto* trouble = std::get_if<WorkerTrouble>(&event)) {
      feed(agent, node::WorkerTroubled{local, *trouble});
    } else if (const auto* answer = std::get_if<WorkerRevoked>(&event)) {
      found->second.last_answer = *answer;
      feed(agent, node::WorkerLeft{local, *answer});
    } else if (const auto* misbehaved = std::get_if<WorkerMisbehaved>(&event)) {
      if (setup_.bug == SurvivorsBug::kNone) fail("a worker " + misbehaved->words);
    }
  }
  if (agent.processes.count(local) != 0) flush(agent, local);
}

// ---- workers leave an attempt, or end

void SurvivorsWorld::perform(SimAgent& agent, const node::OrderLeave& action) {
  SimAgent::Process& process = agent.processes.at(action.local);
  process.session.revoke(action.order);
  flush(agent, action.local);
  kill_one_of(SimulatedFault::kKilledOnRevoke, agent.id);
  if (setup_.bug == SurvivorsBug::kOldAnswerBelieved && process.last_answer)
    feed_later(agent.id, Time(0),
               node::WorkerLeft{action.local, {action.order.attempt, process.last_answer->step}});
}

void SurvivorsWorld::end_soon(std::uint32_t worker, Time wait, int signal) {
  after_on(workers_[worker], wait,
           [this, worker, signal] { die(workers_[worker], SimDeath::By::kUs, 0, signal); });
}

void SurvivorsWorld::perform(SimAgent& agent, const node::TerminateWorker& action) {
  const SimWorker& worker = workers_[agent.processes.at(action.local).worker];
  if (!worker.frozen) end_soon(worker.id, some(100us, 20ms), SIGTERM);
}

void SurvivorsWorld::perform(SimAgent& agent, const node::KillWorker& action) {
  end_soon(agent.processes.at(action.local).worker, some(100us, 20ms), SIGKILL);
}

void SurvivorsWorld::perform(SimAgent& agent, const node::KillLeftovers& action) {
  for (const std::uint32_t local : action.locals) {
    const auto found = agent.processes.find(local);
    if (found != agent.processes.end()) end_soon(found->second.worker, Time(0), SIGKILL);
  }
  feed_later(agent.id, some(1ms, 50ms), node::LeftoversKilled{});
}

void SurvivorsWorld::perform(SimAgent& agent, const node::ReadOutput&) {
  feed_later(agent.id, some(1ms, 200ms), node::OutputRead{});
}

void SurvivorsWorld::perform(SimAgent& agent, const node::ReportLosses&) {
  feed_later(agent.id, some(0ms, 100ms), node::LossesReported{});
}

void SurvivorsWorld::perform(SimAgent& agent, const node::StopWorkers& action) {
  const Time grace = std::chrono::milliseconds(action.order.grace_ms);
  for (auto& [local, process] : agent.processes) {
    process.session.stop(action.order);
    flush(agent, local);
    const bool asked = chance(80) && !workers_[process.worker].frozen;
    end_soon(process.worker, asked ? some(0s, grace) : grace, asked ? SIGTERM : SIGKILL);
  }
}

void SurvivorsWorld::reap(std::uint32_t id, std::uint32_t local, std::uint32_t worker) {
  SimAgent& agent = agents_[id];
  const auto found = agent.processes.find(local);
  if (!agent.alive || found == agent.processes.end() || found->second.worker != worker) return;
  SimDeath& death = workers_[worker].death;
  death.rank = agent.core.attempt().first_rank + local;
  death.attempt = agent.core.attempt().attempt;
  deaths_.push_back(death);
  rendezvous::WorkerExited exited;
  exited.pid = worker + 1;
  exited.code = static_cast<std::uint8_t>(death.code);
  exited.signal = static_cast<std::uint8_t>(death.signal);
  exited.after_stop = death.by == SimDeath::By::kUs;
  agent.processes.erase(found);
  feed(agent, node::WorkerExited{local, exited});
  check_ended(agent);
}

void SurvivorsWorld::perform(SimAgent& agent, const node::CleanUp&) {
  feed_later(agent.id, some(1ms, 100ms), node::AttemptCleaned{0, {}});
}

// ---- the end of an agent

void SurvivorsWorld::perform(SimAgent& agent, const node::CloseLink&) {
  if (!std::exchange(agent.node_open, false)) return;
  Time at;
  if (delayed(hosts_[agent.host].cut_from, agent.to_master, at))
    after(at - now_,
          [this, id = agent.id] { at_master([this, id] { link_ended(id, false, false, "closed"); }); });
}

void SurvivorsWorld::perform(SimAgent& agent, const node::Quit&) {
  quit(agent);
}

/// Ends with one of ddplaunch's exit codes, which show that none of its workers lives.
void SurvivorsWorld::quit(SimAgent& agent) {
  const Time sent = agent.to_master;
  agent.alive = agent.node_open = false;
  const Time cut = std::max(hosts_[agent.host].cut_from, hosts_[agent.host].cut_to);
  after(std::max(std::max(sent, cut), now_) - now_ + 1ms,
        [this, id = agent.id] { at_master([this, id] { link_ended(id, true, true, "its agent ended"); }); });
}

void SurvivorsWorld::heartbeat(std::uint32_t id) {
  SimAgent& agent = agents_[id];
  if (!agent.alive) return;
  if (setup_.bug != SurvivorsBug::kNoHeartbeats) feed(agent, node::HeartbeatDue{now_ - agent.heard});
  after_on(agent.host, kHeartbeat, [this, id] { when_awake(id, [this, id] { heartbeat(id); }); });
}

void SurvivorsWorld::perform(SimAgent& agent, const node::SetLease& action) {
  agent.killed_at.reset();
  if (action.left == Time(0)) return;
  agent.killed_at = hosts_[agent.host].local(now_) + action.left;
  if (!std::exchange(agent.keeper_watches, true)) keeper_checks_lease(agent.id);
}

/// Kills the workers when the lease and the grace are over, in any state of the agent. On a machine that was
/// suspended past the end of the lease, the keeper runs before anything else.
void SurvivorsWorld::keeper_checks_lease(std::uint32_t id) {
  SimAgent& agent = agents_[id];
  if (!agent.alive) return;
  const SimHost& host = hosts_[agent.host];
  if (host.paused > now_) return;  // check_resumed continues
  if (agent.killed_at && host.local(now_) >= *agent.killed_at) {
    // An agent that is awake has had a heartbeat after the end of the lease.
    const Time awake_since = std::max(agent.frozen, host.paused);
    if (awake_since + kHeartbeat < now_ && agent.core.running() && !agent.core.leaving())
      fail("the keeper on " + supervisor_.nodes()[agent.host].name +
           " ends the workers of an agent that runs");
    return after_on(agent.host, some(0s, kKeeperKills), [this, id] { keeper_cleans(id); });
  }
  if (!agent.killed_at) {
    agent.keeper_watches = false;
    return;
  }
  after(global(agent, *agent.killed_at) - now_, [this, id] { keeper_checks_lease(id); });
}

void SurvivorsWorld::keeper_cleans(std::uint32_t id) {
  SimAgent& agent = agents_[id];
  if (!agent.alive) return;
  for (const auto& [local, process] : agent.processes)
    die(workers_[process.worker], SimDeath::By::kUs, 0, SIGKILL);
  agent.processes.clear();
  quit(agent);
}

/// The machine resumes. Workers whose lease has passed end before they run; the others must still be allowed.
void SurvivorsWorld::check_resumed(std::size_t host) {
  if (hosts_[host].paused > now_) return;
  for (const std::uint32_t id : hosts_[host].agents) {
    SimAgent& agent = agents_[id];
    if (!agent.alive || !agent.keeper_watches) continue;
    if (agent.killed_at && hosts_[host].local(now_) >= *agent.killed_at) {
      keeper_cleans(id);
      continue;
    }
    keeper_checks_lease(id);
    for (const auto& [local, process] : agent.processes)
      if (!attempts_.empty() && fences(workers_[process.worker], attempts_.rbegin()->first))
        fail("a worker of attempt " + std::to_string(workers_[process.worker].present->attempt) +
             " runs after a suspension, although a later attempt has begun");
  }
}

}  // namespace ddp::sim
