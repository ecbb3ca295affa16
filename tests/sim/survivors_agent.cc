// The nodes of the simulation: their agents, which follow launcher/agent/agent.cc and agent_rejoin.cc, and
// their keepers.
#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/survivors_world.h"

namespace ddp::sim {

using namespace std::chrono_literals;
using namespace rendezvous;

namespace {

constexpr Time kTcpPatience = 20s;
constexpr Time kLinkGrace = 5s;
constexpr Time kKeeperKills = 4s;
constexpr std::uint32_t kAgentPids = 1'000'000;  ///< PIDs below are the workers'

std::uint32_t agent_pid(std::uint32_t agent) {
  return kAgentPids + agent * 2;  // the next PID is the keeper's
}

}  // namespace

// ---- the link

void SurvivorsWorld::start_agent(std::size_t host, std::uint32_t incarnation) {
  const auto id = static_cast<std::uint32_t>(agents_.size());
  SimAgent& agent = agents_.emplace_back();
  agent.id = id;
  agent.host = host;
  agent.incarnation = incarnation;
  agent.lease = NodeLease(setup_.spec.master_timeout, now_);
  Hello hello;
  hello.hostname = hello.machine_id = "m" + std::to_string(host);
  hello.pid = agent_pid(id);
  hello.keeper = hello.pid + 1;
  hello.pid_namespace = 1;
  hello.cpus = 4;
  hello.interfaces = {{"lo", "127.0.0.1", 8, true, true},
                      {"eth0", "10.0.0.1" + std::to_string(host), 24, true, false}};
  to_master(agent, hello);
  heartbeat(id);
}

/// Computes when a message arrives: in order, after the end of a cut. Returns false if the connection breaks
/// before.
bool SurvivorsWorld::delayed(const SimAgent& agent, Time& last, Time& at) {
  const Time cut = hosts_[agent.host].cut;
  if (cut > now_ + kTcpPatience) return false;
  last = at = std::max(last, std::max(now_, cut) + some(100us, chance(5) ? 300ms : 3ms));
  return true;
}

void SurvivorsWorld::to_node(SimAgent& agent, Message message) {
  Time at;
  const std::uint32_t id = agent.id;
  if (!delayed(agent, agent.to_node, at)) {
    return after(kTcpPatience,
                 [this, id] { at_master([this, id] { link_ended(id, false, false, "timed out"); }); });
  }
  after(at - now_, [this, id, message = std::move(message)] {
    when_awake(id, [this, id, message] {
      SimAgent& there = agents_[id];
      if (there.alive && there.node_open) take(there, message);
    });
  });
}

void SurvivorsWorld::to_master(SimAgent& agent, Message message) {
  if (!agent.alive || !agent.node_open) return;
  Time at;
  const std::uint32_t id = agent.id;
  if (!delayed(agent, agent.to_master, at)) {
    return after(kTcpPatience, [this, id] {
      when_awake(id, [this, id] {
        if (std::exchange(agents_[id].node_open, false)) go_down(agents_[id]);
      });
    });
  }
  after(at - now_, [this, id, happened = now_, message = std::move(message)] {
    at_master([this, id, happened, message] { from_node(id, message, happened); });
  });
}

/// A frozen agent handles all its messages in order when it wakes.
void SurvivorsWorld::when_awake(std::uint32_t id, Act act) {
  const Time frozen = agents_[id].frozen;
  if (frozen <= now_) return act();
  after(frozen - now_, [this, id, act = std::move(act)] { when_awake(id, act); });
}

void SurvivorsWorld::take(SimAgent& agent, const Message& message) {
  if (const auto* start = std::get_if<JobStart>(&message)) {
    agent.leased = true;
    agent.accepted = now_;
    keeper_checks_lease(agent.id);
    to_master(agent, JobAccepted{"/bin/train", {}, "", predecessor_gone(start->predecessor)});
  } else if (const auto* open = std::get_if<OpenStore>(&message)) {
    open_store(agent, *open);
  } else if (const auto* probe = std::get_if<Probe>(&message)) {
    to_master(agent, ProbeResult{probe->attempt, probe->addresses.front(), "", ""});
  } else if (const auto* order = std::get_if<Spawn>(&message)) {
    spawn(agent, *order);
  } else if (const auto* revoke_order = std::get_if<Revoke>(&message)) {
    if (give_up_next(agent, revoke_order->attempt)) return;
    if (agent.running && !agent.waiting && revoke_order->attempt == agent.attempt && !agent.leaving &&
        !agent.ending && !agent.stopping && !std::exchange(agent.leaving_attempt, true))
      revoke(agent, *revoke_order);
  } else if (const auto* end = std::get_if<Stop>(&message)) {
    if (give_up_next(agent, end->attempt)) return;
    if (agent.running && end->attempt == agent.attempt) {
      for (auto& [local, process] : agent.processes) {
        process.session.stop({end->reason, end->grace_ms});
        flush(agent, local);
      }
      stop(agent, std::chrono::milliseconds(end->grace_ms));
    }
  } else if (const auto* ping = std::get_if<Ping>(&message)) {
    agent.lease.pinged(now_);
    to_master(agent, Pong{ping->sequence, 0});
  } else if (std::holds_alternative<Leave>(message)) {
    go_down(agent);
  }
}

/// Agent and keeper end together in this simulation.
bool SurvivorsWorld::predecessor_gone(const std::vector<std::uint32_t>& pids) const {
  if (setup_.bug == SurvivorsBug::kPredecessorUnseen) return !pids.empty();
  const bool any_alive = std::any_of(pids.begin(), pids.end(), [this](std::uint32_t pid) {
    return pid < kAgentPids ? workers_[pid - 1].alive : agents_[(pid - kAgentPids) / 2].alive;
  });
  return !pids.empty() && !any_alive;
}

void SurvivorsWorld::open_store(SimAgent& agent, const OpenStore& message) {
  if (agent.leaving || (agent.running && !agent.waiting && !agent.stopping)) return;
  if (std::exchange(hosts_[agent.host].store_refused, false)) {
    return to_master(agent, Refused{static_cast<std::uint8_t>(ErrorCode::kRefused), 0, "no port is free"});
  }
  after(some(0s, 5ms), [this, id = agent.id, attempt = message.attempt] {
    when_awake(id, [this, id, attempt] { to_master(agents_[id], StoreOpened{attempt, 29500}); });
  });
}

// ---- an attempt begins

bool SurvivorsWorld::give_up_next(SimAgent& agent, std::uint32_t attempt) {
  if (!agent.next_spawn || agent.next_spawn->attempt != attempt) return false;
  agent.next_spawn.reset();
  to_master(agent, AttemptEnded{attempt, 0, {}});
  return true;
}

void SurvivorsWorld::spawn(SimAgent& agent, const Spawn& message) {
  if (agent.leaving) return;
  const bool some_alive = agent.waiting && !agent.processes.empty();
  if (agent.running && !some_alive) {
    agent.next_spawn = message;
    return;
  }
  agent.lease.proven(agent.accepted);
  agent.attempt = message.attempt;
  agent.first_rank = message.first_rank;
  agent.local_world = message.local_world_size;
  agent.waiting = agent.greeted_reported = agent.ready_reported = agent.stopping = false;
  agent.running = true;
  for (auto& [local, process] : agent.processes) {
    process.ready = false;
    if (setup_.bug != SurvivorsBug::kOldAnswerBelieved) process.answer.reset();
    to_master(agent, WorkerStarted{agent.attempt, agent.first_rank + local, process.worker + 1, 0, 0});
  }
  for (std::uint32_t local = 0; local < message.local_world_size; ++local) {
    if (agent.processes.count(local) == 0) start_worker(agent, local);
    AttemptOrder order{message.attempt,
                       message.first_rank + local,
                       message.world_size,
                       local,
                       message.local_world_size,
                       message.node_rank,
                       message.nodes,
                       message.master_addr + ":" + std::to_string(message.master_port),
                       message.agent_store,
                       {}};
    if (message.from >= 0) order.from = static_cast<std::uint32_t>(message.from);
    agent.processes.at(local).session.begin(order);
    flush(agent, local);
  }
}

void SurvivorsWorld::start_worker(SimAgent& agent, std::uint32_t local) {
  for (const SimWorker& other : workers_)
    if (other.alive && agents_[other.agent].host == agent.host && other.agent != agent.id)
      fail("workers are started on " + supervisor_.name(agent.host) + ", where others still live");
  const auto id = static_cast<std::uint32_t>(workers_.size());
  SimWorker& worker = workers_.emplace_back();
  worker.id = id;
  worker.agent = agent.id;
  worker.local = local;
  agent.processes[local] = {};
  agent.processes[local].worker = id;
  to_master(agent, WorkerStarted{agent.attempt, agent.first_rank + local, id + 1, 0, agent.attempt});
  after(some(10ms, 400ms), [this, id] {
    SimWorker& started = workers_[id];
    if (!started.alive || started.frozen) return;
    say(started, WorkerHello{kWorkerProtocol, id + 1, true, false});
    after(some(0ms, 3s), [this, id] {  // the worker loads its data
      if (workers_[id].alive && !workers_[id].frozen) next_attempt(workers_[id]);
    });
  });
}

void SurvivorsWorld::flush(SimAgent& agent, std::uint32_t local) {
  SimAgent::WorkerProcessState& process = agent.processes.at(local);
  std::string bytes = process.session.take_output();
  if (bytes.empty()) return;
  after(kSimLineTime, [this, id = process.worker, bytes = std::move(bytes)] { hear(workers_[id], bytes); });
}

// ---- messages of workers

void SurvivorsWorld::worker_says(std::uint32_t id, std::uint32_t local, std::uint32_t worker,
                                 const std::string& line) {
  SimAgent& agent = agents_[id];
  const auto found = agent.processes.find(local);
  if (!agent.alive || found == agent.processes.end() || found->second.worker != worker) return;
  SimAgent::WorkerProcessState& process = found->second;
  for (const WorkerEvent& event : process.session.receive(line)) {
    if (const auto* hello = std::get_if<WorkerHello>(&event)) {
      process.can_rejoin = hello->rejoin && !hello->sharded;
      report_greeted(agent);
    } else if (std::holds_alternative<WorkerReady>(event)) {
      process.ready = true;
      report_ready(agent);
    } else if (const auto* trouble = std::get_if<WorkerTrouble>(&event)) {
      if (trouble->attempt == agent.attempt && !agent.waiting)
        to_master(agent,
                  WorkerInTrouble{agent.attempt, agent.first_rank + local, trouble->error, trouble->peers});
    } else if (const auto* answer = std::get_if<WorkerRevoked>(&event)) {
      if (answer->attempt != agent.attempt) continue;
      process.answer = *answer;
      revoke_goes_on(id, agent.turn);
    } else if (const auto* misbehaved = std::get_if<WorkerMisbehaved>(&event)) {
      if (setup_.bug == SurvivorsBug::kNone) fail("a worker " + misbehaved->words);
    }
  }
  if (agent.processes.count(local) != 0) flush(agent, local);
}

void SurvivorsWorld::report_greeted(SimAgent& agent) {
  const bool all = std::all_of(agent.processes.begin(), agent.processes.end(),
                               [](const auto& entry) { return entry.second.can_rejoin; });
  if (!all || agent.processes.empty() || agent.waiting || std::exchange(agent.greeted_reported, true)) return;
  to_master(agent, WorkersGreeted{agent.attempt});
}

void SurvivorsWorld::report_ready(SimAgent& agent) {
  const bool all = std::all_of(agent.processes.begin(), agent.processes.end(),
                               [](const auto& entry) { return entry.second.ready; });
  if (!all || agent.processes.empty() || agent.waiting || std::exchange(agent.ready_reported, true)) return;
  to_master(agent, WorkersReady{agent.attempt});
}

// ---- an attempt ends

void SurvivorsWorld::revoke(SimAgent& agent, const Revoke& message) {
  const std::uint64_t turn = ++agent.turn;
  for (auto& [local, process] : agent.processes) {
    const std::uint32_t rank = agent.first_rank + local;
    const bool hangs = std::find(message.kill.begin(), message.kill.end(), rank) != message.kill.end();
    if (hangs || !process.can_rejoin) {
      process.killed = "";
      after(some(100us, 20ms),
            [this, id = process.worker] { die(workers_[id], SimDeath::By::kUs, 0, SIGKILL); });
      continue;
    }
    process.session.revoke({agent.attempt, message.reason, message.deadline_ms});
    flush(agent, local);
  }
  kill_one_of(SimulatedFault::kKilledOnRevoke, agent.id);
  after(std::chrono::milliseconds(message.deadline_ms),
        [this, id = agent.id, turn] { when_awake(id, [this, id, turn] { kill_late(id, turn); }); });
  revoke_goes_on(agent.id, turn);
}

void SurvivorsWorld::kill_late(std::uint32_t id, std::uint64_t turn) {
  SimAgent& agent = agents_[id];
  if (!agent.alive || !agent.leaving_attempt || agent.turn != turn) return;
  for (auto& [local, process] : agent.processes) {
    if (process.answer || process.killed) continue;
    process.killed = "did not leave the attempt in time and was killed";
    after(some(100us, 20ms),
          [this, worker = process.worker] { die(workers_[worker], SimDeath::By::kUs, 0, SIGKILL); });
  }
}

/// Waits until all workers have answered or are dead, lets the exits settle, and then reports to the master.
void SurvivorsWorld::revoke_goes_on(std::uint32_t id, std::uint64_t turn) {
  SimAgent& agent = agents_[id];
  if (!agent.leaving_attempt || agent.turn != turn) return;
  for (const auto& [local, process] : agent.processes)
    if (!process.answer || process.killed) return;
  after(some(1ms, 300ms), [this, id, turn] {
    when_awake(id, [this, id, turn] {
      SimAgent& there = agents_[id];
      if (!there.alive || there.turn != turn || !std::exchange(there.leaving_attempt, false)) return;
      if (there.stopping || there.leaving || there.processes.empty()) return check_ended(there);
      there.waiting = true;
      notify_survivors(there);
      kill_one_of(SimulatedFault::kKilledWaiting, id);
    });
  });
}

void SurvivorsWorld::notify_survivors(SimAgent& agent) {
  if (agent.processes.empty()) return;
  AttemptRevoked revoked{agent.attempt, {}};
  for (const auto& [local, process] : agent.processes) {
    const bool holds = process.answer && process.answer->step;
    revoked.survivors.push_back({local, holds, holds ? *process.answer->step : 0});
  }
  to_master(agent, revoked);
}

void SurvivorsWorld::stop(SimAgent& agent, Time grace) {
  agent.stopping = true;
  agent.waiting = false;
  for (const auto& [local, process] : agent.processes) {
    const bool asked = chance(80) && !workers_[process.worker].frozen;
    after(asked ? some(0s, grace) : grace, [this, id = process.worker, asked] {
      die(workers_[id], SimDeath::By::kUs, 0, asked ? SIGTERM : SIGKILL);
    });
  }
  check_ended(agent);
}

void SurvivorsWorld::reap(std::uint32_t id, std::uint32_t local, std::uint32_t worker) {
  SimAgent& agent = agents_[id];
  const auto found = agent.processes.find(local);
  if (!agent.alive || found == agent.processes.end() || found->second.worker != worker) return;
  SimDeath& death = workers_[worker].death;
  death.rank = agent.first_rank + local;
  death.attempt = agent.attempt;
  deaths_.push_back(death);
  WorkerExited exited;
  exited.attempt = agent.attempt;
  exited.rank = death.rank;
  exited.pid = worker + 1;
  exited.code = static_cast<std::uint8_t>(death.code);
  exited.signal = static_cast<std::uint8_t>(death.signal);
  exited.by_revoke = found->second.killed.has_value();
  exited.after_stop = death.by == SimDeath::By::kUs;
  exited.text = found->second.killed.value_or("");
  to_master(agent, exited);
  agent.processes.erase(found);
  if (agent.waiting)
    notify_survivors(agent);
  else
    report_ready(agent);
  revoke_goes_on(id, agent.turn);
  check_ended(agent);
}

void SurvivorsWorld::check_ended(SimAgent& agent) {
  if (!agent.alive || !agent.running || !agent.processes.empty() || agent.leaving_attempt) return;
  if (std::exchange(agent.ending, true)) return;
  after(some(1ms, 200ms), [this, id = agent.id, attempt = agent.attempt] {
    when_awake(id, [this, id, attempt] { ended(id, attempt); });
  });
}

void SurvivorsWorld::ended(std::uint32_t id, std::uint32_t attempt) {
  SimAgent& agent = agents_[id];
  if (!agent.alive) return;
  to_master(agent, AttemptEnded{attempt, 0, ""});
  agent.running = agent.waiting = agent.ending = agent.stopping = false;
  if (agent.leaving) return quit(agent);
  if (!agent.next_spawn) return;
  const Spawn next = *std::exchange(agent.next_spawn, std::nullopt);
  spawn(agent, next);
}

// ---- the end of an agent

void SurvivorsWorld::go_down(SimAgent& agent) {
  if (!agent.alive || std::exchange(agent.leaving, true)) return;
  agent.waiting = false;
  if (!agent.running) return quit(agent);
  stop(agent, kLinkGrace);
}

/// Ends with one of ddplaunch's exit codes, which show that none of its workers lives.
void SurvivorsWorld::quit(SimAgent& agent) {
  const Time sent = agent.to_master;
  agent.alive = agent.node_open = false;
  const Time cut = hosts_[agent.host].cut;
  after(std::max(std::max(sent, cut), now_) - now_ + 1ms,
        [this, id = agent.id] { at_master([this, id] { link_ended(id, true, true, "its agent ended"); }); });
}

void SurvivorsWorld::heartbeat(std::uint32_t id) {
  SimAgent& agent = agents_[id];
  if (!agent.alive) return;
  if (agent.running && !agent.leaving && agent.leased && agent.lease.over(now_)) {
    agent.node_open = false;
    Time at;
    if (delayed(agent, agent.to_master, at))
      after(at - now_, [this, id] { at_master([this, id] { link_ended(id, false, false, "closed"); }); });
    return go_down(agent);
  }
  after(1s, [this, id] { when_awake(id, [this, id] { heartbeat(id); }); });
}

/// Kills the workers when the lease and the grace are over, in any state of the agent.
void SurvivorsWorld::keeper_checks_lease(std::uint32_t id) {
  const SimAgent& agent = agents_[id];
  if (!agent.alive) return;
  const Time due = agent.lease.ends_at() + kLinkGrace;
  if (now_ >= due) return after(some(0s, kKeeperKills), [this, id] { keeper_cleans(id); });
  after(due - now_, [this, id] { keeper_checks_lease(id); });
}

void SurvivorsWorld::keeper_cleans(std::uint32_t id) {
  SimAgent& agent = agents_[id];
  if (!agent.alive) return;
  for (const auto& [local, process] : agent.processes)
    die(workers_[process.worker], SimDeath::By::kUs, 0, SIGKILL);
  agent.processes.clear();
  quit(agent);
}

}  // namespace ddp::sim
