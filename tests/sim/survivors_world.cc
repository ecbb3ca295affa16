// The master's side of the simulation: the Supervisor, its driver, and their invariants.
#include "tests/sim/survivors_world.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "launcher/report/exit_report.h"

namespace ddp::sim {

using namespace std::chrono_literals;
using namespace rendezvous;
namespace job = launcher::job;

namespace {

constexpr Time kAtTheEnd = 90s;
/// Longest wait for the reason after the end of a link.
constexpr Time kEndTime = 5s;

}  // namespace

namespace {

launcher::JobSpec with_bug(launcher::JobSpec spec, SurvivorsBug bug) {
  if (bug == SurvivorsBug::kFenceOff) spec.fence = launcher::FenceMode::kOff;
  if (bug == SurvivorsBug::kOneNodeLess) spec.min_nodes = std::max(1, spec.min_nodes - 1);
  if (bug == SurvivorsBug::kFreeRestarts) spec.max_restarts += 1;
  return spec;
}

launcher::JobRules rules_of(const launcher::JobSpec& spec, int host_faults) {
  launcher::JobRules rules = launcher::rules_of(spec);
  rules.host_faults = host_faults;
  return rules;
}

}  // namespace

SurvivorsWorld::SurvivorsWorld(const SurvivorsSetup& setup, std::uint64_t seed)
    : setup_(setup),
      random_(seed),
      spec_(with_bug(setup_.spec, setup_.bug)),
      supervisor_(spec_, rules_of(spec_, setup_.host_faults)),
      history_(setup.samples, setup.batch_size, static_cast<std::int64_t>(seed)) {
  constexpr std::int64_t kDrift = 200;  // parts per million
  hosts_.resize(setup_.spec.hosts.size());
  for (SimHost& host : hosts_) {
    host.offset = some(0s, 1000s);
    host.ppm = static_cast<std::int64_t>(random_() % (2 * kDrift + 1)) - kDrift;
  }
  mishaps_left_ = setup_.mishaps;
}

SurvivorsReport simulate_survivors(const SurvivorsSetup& setup, std::uint64_t seed) {
  return SurvivorsWorld(setup, seed).run();
}

SurvivorsReport SurvivorsWorld::run() {
  const Time limit = setup_.mishaps * (setup_.between + 180s) + setup_.epochs * 400s + 7200s;
  carry_out(supervisor_.start(now_));
  arm_tick();
  for (std::size_t host = 0; host < supervisor_.nodes().size(); ++host)
    after(some(100ms, 2s), [this, host] { start_agent(host, 1); });
  after(1s, [this] { ping(); });
  after(some(0s, 2 * setup_.between), [this] { next_mishap(); });
  for (const PlannedFault& fault : setup_.planned) {
    after(fault.at, [this, fault] {
      if (fault.kind == SimulatedFault::kMasterAsleep) {
        asleep_until_ = now_ + fault.lasts;
        return;
      }
      SimAgent* agent = link_of(fault.host);
      if (agent != nullptr && befall_node(*agent, fault.kind, now_ + fault.lasts))
        ++report_.mishaps[fault.kind];
    });
  }
  std::optional<Time> finished;
  while (!queue_.empty() && !report_.broken) {
    std::pop_heap(queue_.begin(), queue_.end(), later);
    const Event event = std::move(queue_.back());
    queue_.pop_back();
    now_ = event.at;
    if (supervisor_.finished() && !finished) finished = now_;
    if (finished && now_ > *finished + kAtTheEnd) break;
    if (now_ > limit) fail("the job does not end" + what_workers_do());
    ++report_.events;
    const bool suspended = event.host && hosts_[*event.host].paused > now_;
    if (suspended)
      after_on(*event.host, hosts_[*event.host].paused - now_, event.act);
    else
      event.act();
  }
  report_.time = finished.value_or(now_);
  if (!report_.broken) check_end();
  report_.steps = history_.steps();
  return report_;
}

/// Describes a run that hangs.
std::string SurvivorsWorld::what_workers_do() const {
  std::string text;
  for (const SimWorker& worker : workers_) {
    if (!worker.alive) continue;
    text += "; a worker of " + supervisor_.nodes()[agents_[worker.agent].host].name +
            (worker.frozen ? " is frozen" : " does ") + std::to_string(static_cast<int>(worker.doing)) +
            (worker.in_round ? " in round " : " after round ") + std::to_string(worker.round);
    if (worker.present) text += " of attempt " + std::to_string(worker.present->attempt);
  }
  for (const SimAgent& agent : agents_) {
    if (!agent.alive && !agent.master_open) continue;
    text += "; " + supervisor_.nodes()[agent.host].name + (agent.alive ? " is there" : " is gone") +
            " with attempt " + std::to_string(agent.core.attempt().attempt) + " in state " +
            std::to_string(static_cast<int>(agent.core.state())) +
            (agent.node_open ? "" : ", its link closed") + (agent.master_open ? "" : ", given up") +
            (agent.answered ? ", answered" : "");
  }
  return text + "; the master is in state " + std::to_string(static_cast<int>(supervisor_.state()));
}

Time SurvivorsWorld::some(Time from, Time to) {
  return from +
         Time(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>((to - from).count() + 1)));
}

void SurvivorsWorld::fail(const std::string& what) {
  if (!report_.broken) report_.broken = what + ", after " + std::to_string(now_ / 1ms) + " ms";
}

// ---- the driver

/// While the master's machine sleeps, all events wait in order.
void SurvivorsWorld::at_master(Act act) {
  if (asleep_until_ <= now_) return act();
  after(asleep_until_ - now_, [this, act = std::move(act)] { at_master(act); });
}

void SurvivorsWorld::feed(const job::Event& event) {
  carry_out(supervisor_.step(event, now_));
  arm_tick();
}

void SurvivorsWorld::arm_tick() {
  const auto due = supervisor_.deadline();
  if (setup_.bug == SurvivorsBug::kNoTicks || !due || (tick_at_ && *tick_at_ <= *due)) return;
  const Time at = std::max(*due, now_ + 1us);
  tick_at_ = at;
  after(at - now_, [this, at] {
    at_master([this, at] {
      if (tick_at_ != at) return;
      tick_at_.reset();
      if (now_ > at + 1s) {  // the time that the master slept is no silence
        for (SimAgent& agent : agents_)
          agent.delivered = std::min(now_, agent.delivered + now_ - at);
      }
      if (now_ > at + 1s && setup_.bug == SurvivorsBug::kSilenceForgotten) {
        for (std::size_t host = 0; host < hosts_.size(); ++host)
          if (const SimAgent* agent = link_of(host); agent != nullptr && agent->greeted)
            feed(job::NodeHeartbeat{host, agent->incarnation});
      }
      feed(job::Tick{});
    });
  });
}

void SurvivorsWorld::ping() {
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    SimAgent* agent = link_of(host);
    if (agent == nullptr || !agent->greeted || asleep_until_ > now_) continue;
    if (!std::exchange(agent->ping_owed, true) || setup_.bug == SurvivorsBug::kPingsUnasked)
      to_node(*agent, Ping{1});
  }
  if (asleep_until_ <= now_) probe();
  after(1s, [this] { ping(); });
}

/// New connections to the machines of silent nodes. Checks that no node is silent for longer than it may.
void SurvivorsWorld::probe() {
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    const SimAgent* agent = link_of(host);
    if (agent == nullptr || !agent->greeted || supervisor_.state() >= launcher::Supervisor::State::kEnding)
      continue;
    const Time silent = now_ - agent->delivered;
    if (silent > 2 * setup_.spec.node_timeout + 5s && supervisor_.nodes()[host].is_present())
      return fail(supervisor_.nodes()[host].name + " is silent for " + std::to_string(silent / 1ms) +
                  " ms and was not given up");
    const SimHost& machine = hosts_[host];
    const bool answers = std::max({machine.cut_to, machine.cut_from, machine.down, machine.paused}) <= now_;
    if (silent > 3s && answers) feed(job::NodeReachable{host, agent->incarnation});
  }
}

/// Returns the open link to a host.
SimAgent* SurvivorsWorld::link_of(std::size_t host) {
  if (hosts_[host].agents.empty()) return nullptr;
  SimAgent& latest = agents_[hosts_[host].agents.back()];
  return latest.master_open ? &latest : nullptr;
}

void SurvivorsWorld::carry_out(job::Actions actions) {
  for (const job::Action& action : actions) {
    if (const auto* send = std::get_if<job::ToNode>(&action)) carry_out(*send);
    if (const auto* drop = std::get_if<job::Disconnect>(&action)) carry_out(*drop);
    if (const auto* again = std::get_if<job::Recall>(&action)) recall(again->node);
    if (const auto* lost = std::get_if<job::SweepNode>(&action)) sweep(lost->node);
    if (const auto* words = std::get_if<job::PrintLine>(&action)) heard_by_user(words->text);
    if (const auto* words = std::get_if<job::Detail>(&action); words != nullptr && setup_.spec.verbose)
      heard_by_user(words->text);
  }
}

/// An agent on the host of a lost one kills what is left of it, if the host can be reached.
void SurvivorsWorld::sweep(std::size_t host) {
  const std::uint32_t incarnation = hosts_[host].incarnation;
  after(some(100ms, 3s), [this, host, incarnation] {
    const SimHost& machine = hosts_[host];
    const bool reached = std::max({machine.cut_to, machine.cut_from, machine.down, machine.paused}) <= now_;
    for (const std::uint32_t id : machine.agents) {
      SimAgent& agent = agents_[id];
      if (!reached || agent.incarnation != incarnation) continue;
      for (const auto& [local, process] : agent.processes)
        die(workers_[process.worker], SimDeath::By::kUs, 0, SIGKILL);
      agent.processes.clear();
      if (agent.alive) quit(agent);
    }
    at_master([this, host, incarnation, reached] {
      feed(job::NodeSwept{host, incarnation, reached ? "nothing is left" : "it cannot be reached", reached});
    });
  });
}

void SurvivorsWorld::carry_out(const job::ToNode& send) {
  if (const auto* open = std::get_if<OpenStore>(&send.message)) {
    ++report_.attempts;
    if (static_cast<int>(open->attempt) != report_.restarts + growths_)
      fail("attempt " + std::to_string(open->attempt) + " begins, but " + std::to_string(report_.restarts) +
           " restarts were reported, and " + std::to_string(growths_) + " growths");
  }
  SimAgent* agent = link_of(send.node);
  if (agent == nullptr) return;
  Message message = send.message;
  if (auto* spawn = std::get_if<Spawn>(&message)) check_spawn(send.node, *agent, *spawn);
  if (std::holds_alternative<Stop>(message)) agent->survivors.clear();
  if (const auto* stop = std::get_if<Stop>(&message); stop != nullptr &&
                                                      setup_.bug == SurvivorsBug::kDismissedForged &&
                                                      supervisor_.nodes()[send.node].ending) {
    agent->answered = true;
    after(1ms, [this, id = agent->id, ended = AttemptEnded{stop->attempt, 0, ""}] {
      if (agents_[id].master_open)
        feed(job::FromNode{agents_[id].host, ended, now_, Time(0), agents_[id].incarnation});
    });
  }
  to_node(*agent, std::move(message));
  const auto* revoke = std::get_if<Revoke>(&send.message);
  if (revoke == nullptr) return;
  if (setup_.bug == SurvivorsBug::kAnswersForged) {
    AttemptRevoked forged{revoke->attempt, {{0, true, 1}}};
    agent->survivors = forged.survivors;
    after(1ms, [this, id = agent->id, forged] {
      if (agents_[id].master_open)
        feed(job::FromNode{agents_[id].host, forged, now_, Time(0), agents_[id].incarnation});
    });
  }
}

/// Checks two rules of a spawn. The node must have reported the end of its previous attempt. `from` must be
/// the lowest of the most advanced ranks.
void SurvivorsWorld::check_spawn(std::size_t host, SimAgent& agent, Spawn& spawn) {
  if (!agent.answered)
    fail(supervisor_.nodes()[host].name + " is ordered to spawn attempt " + std::to_string(spawn.attempt) +
         " before it has answered for attempt " + std::to_string(agent.spawned->attempt));
  if (attempts_.count(spawn.attempt) == 0) {
    check_fence(spawn.attempt);
    check_nodes(spawn);
    SimAttempt& attempt = attempts_[spawn.attempt];
    attempt.number = spawn.attempt;
    attempt.world = spawn.world_size;
    std::optional<std::uint64_t> best;
    std::optional<std::uint32_t> lowest;
    for (const RankAssignment& assignment : supervisor_.nodes().world().assignments) {
      const SimAgent* link = link_of(assignment.host);
      if (link == nullptr) continue;
      for (const Survivor& survivor : link->survivors) {
        const std::uint32_t rank = static_cast<std::uint32_t>(assignment.first_rank) + survivor.local_rank;
        if (survivor.holds_state && !lowest) lowest = rank;
        if (!survivor.holds_state || (best && survivor.step <= *best)) continue;
        best = survivor.step;
        attempt.reported_from = rank;
      }
    }
    attempt.from = setup_.bug == SurvivorsBug::kFromLowest ? lowest : attempt.reported_from;
    for (SimAgent& one : agents_)
      one.survivors.clear();
    report_.lived_on += attempt.from.has_value();
    if (attempts_.size() > 64) attempts_.erase(attempts_.begin());
  }
  SimAttempt& attempt = attempts_[spawn.attempt];
  const std::int32_t from = attempt.reported_from ? static_cast<std::int32_t>(*attempt.reported_from) : -1;
  if (spawn.from != from)
    fail("attempt " + std::to_string(spawn.attempt) + " takes the state from rank " +
         std::to_string(spawn.from) + ", but rank " + std::to_string(from) +
         " reported that it had come furthest");
  if (setup_.bug == SurvivorsBug::kFromLowest && attempt.from)
    spawn.from = static_cast<std::int32_t>(*attempt.from);
  agent.spawned = spawn;
  agent.answered = false;
  if (setup_.bug == SurvivorsBug::kWorldDiffers && spawn.nodes > 1 && spawn.node_rank + 1 == spawn.nodes)
    ++spawn.world_size;
}

/// Checks the nodes of an attempt that begins, and that a present node without a part in it runs no worker.
void SurvivorsWorld::check_nodes(const Spawn& spawn) {
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    const SimAgent* agent = link_of(host);
    if (agent == nullptr || supervisor_.nodes().assignment(host) != nullptr || hosts_[host].paused > now_)
      continue;
    if (supervisor_.nodes()[host].is_present() && !agent->processes.empty())
      fail("attempt " + std::to_string(spawn.attempt) + " begins while workers live on " +
           supervisor_.nodes()[host].name + ", which has no part in it");
  }
  const launcher::JobSpec& spec = setup_.spec;
  const auto nodes = static_cast<int>(spawn.nodes);
  if (nodes < spec.min_nodes || nodes > spec.max_nodes)
    fail("attempt " + std::to_string(spawn.attempt) + " begins with " + std::to_string(nodes) + " nodes");
}

/// Checks that no rank that may still write a checkpoint of an earlier attempt lives when another attempt
/// begins.
void SurvivorsWorld::check_fence(std::uint32_t attempt) {
  for (const SimWorker& worker : workers_) {
    // A suspended machine is checked when it resumes.
    if (!fences(worker, attempt) || hosts_[agents_[worker.agent].host].paused > now_) continue;
    fail("attempt " + std::to_string(attempt) + " begins while rank " + std::to_string(worker.present->rank) +
         " of attempt " + std::to_string(worker.present->attempt) + " is on " +
         supervisor_.nodes()[agents_[worker.agent].host].name);
  }
}

/// Returns whether the worker must not be in an earlier attempt when this one has begun.
bool SurvivorsWorld::fences(const SimWorker& worker, std::uint32_t attempt) const {
  const bool released =
      worker.doing == SimWorker::Activity::kIdle || worker.doing == SimWorker::Activity::kLoading;
  if (!worker.alive || !worker.present || released || worker.present->attempt >= attempt) return false;
  return worker.present->rank == 0 || setup_.spec.fence == launcher::FenceMode::kAll;
}

void SurvivorsWorld::carry_out(const job::Disconnect& drop) {
  hosts_[drop.node].being_started = false;
  SimAgent* agent = link_of(drop.node);
  if (agent == nullptr) return;
  agent->master_open = false;
  if (setup_.bug == SurvivorsBug::kLeaseForgotten && agent->greeted)
    after(1ms, [this, id = agent->id] { link_ended(id, true, true, "dropped"); });
  Time at;
  if (!delayed(hosts_[drop.node].cut_to, agent->to_node, at)) return;
  after(at - now_, [this, id = agent->id] {
    when_awake(id, [this, id] {
      if (agents_[id].node_open) feed(agents_[id], launcher::node::LinkLost{});
    });
  });
}

void SurvivorsWorld::recall(std::size_t host) {
  carry_out(job::Disconnect{host});
  SimHost& machine = hosts_[host];
  machine.being_started = true;
  const std::uint32_t incarnation = ++machine.incarnation;
  after(some(300ms, 2s), [this, host, incarnation] {
    at_master([this, host, incarnation] {
      const SimHost& there = hosts_[host];
      if (there.incarnation != incarnation || supervisor_.finished()) return;
      const bool reached = there.being_started && there.cut_to <= now_ && there.cut_from <= now_ &&
                           there.down <= now_ && there.paused <= now_;
      if (reached) return start_agent(host, incarnation);
      feed(job::NodeFailed{host, Error{ErrorCode::kUnreachable, "no route to host", 0}});
    });
  });
}

void SurvivorsWorld::from_node(std::uint32_t id, const Message& message, Time happened) {
  SimAgent& agent = agents_[id];
  if (setup_.bug == SurvivorsBug::kLateBelieved && agent.greeted) {
    const std::uint32_t current = hosts_[agent.host].incarnation;
    if (auto ended = std::get_if<AttemptEnded>(&message))
      return feed(job::FromNode{agent.host,
                                AttemptEnded{supervisor_.nodes().attempt(), ended->left, ended->left_text},
                                happened, 100us, current});
    if (auto exited = std::get_if<WorkerExited>(&message)) {
      WorkerExited believed = *exited;
      believed.attempt = supervisor_.nodes().attempt();
      return feed(job::FromNode{agent.host, believed, happened, 100us, current});
    }
  }
  if (!agent.master_open) return;
  if (const auto* hello = std::get_if<Hello>(&message)) {
    agent.greeted = true;
    hosts_[agent.host].being_started = false;
    return feed(job::NodeUp{agent.host, *hello, hello->interfaces[1].address, agent.incarnation, true});
  }
  agent.delivered = now_;
  feed(job::NodeHeartbeat{agent.host, agent.incarnation});
  if (!agent.master_open) return;
  if (std::holds_alternative<Pong>(message)) {
    agent.ping_owed = false;
    return;
  }
  if (const auto* revoked = std::get_if<AttemptRevoked>(&message);
      revoked && agent.spawned && revoked->attempt == agent.spawned->attempt) {
    agent.answered = true;
    agent.survivors = revoked->survivors;
  }
  if (const auto* ended = std::get_if<AttemptEnded>(&message);
      ended && agent.spawned && ended->attempt == agent.spawned->attempt) {
    agent.answered = true;
    agent.survivors.clear();
  }
  feed(job::FromNode{agent.host, message, happened, 100us, agent.incarnation});
}

/// Reports first the end of the link, then its reason.
void SurvivorsWorld::link_ended(std::uint32_t id, bool gone, bool workers_dead, const std::string& why) {
  SimAgent& agent = agents_[id];
  if (agent.gone_reported) return;
  const Error error{ErrorCode::kLinkLost, why, 0};
  const bool is_last_message = gone || workers_dead;
  if (std::exchange(agent.master_open, false)) {
    if (agent.greeted) feed(job::LinkEnded{agent.host, error, agent.incarnation});
  } else if (!is_last_message) {
    return;
  }
  if (!is_last_message) {
    const bool forgotten = setup_.bug == SurvivorsBug::kLeaseForgotten;
    after(forgotten ? 1ms : kEndTime, [this, id, forgotten, why] {
      at_master([this, id, forgotten, why] { link_ended(id, true, forgotten, why); });
    });
    return;
  }
  agent.gone_reported = true;
  if (!agent.greeted) return feed(job::NodeFailed{agent.host, error});
  feed(job::NodeGone{agent.host, error, workers_dead, agent.incarnation});
}

// ---- invariants

void SurvivorsWorld::heard_by_user(const std::string& text) {
  report_.log += std::to_string(now_ / 1ms) + ": " + text + "\n";
  const std::string mark = " restart ";
  if (text.starts_with("the job grows from ")) ++growths_;
  const auto at = text.rfind(mark);
  if (at == std::string::npos || text.find(" of ", at) == std::string::npos) return;
  const int reported = std::atoi(text.c_str() + at + mark.size());
  if (reported != ++report_.restarts)
    fail("restart " + std::to_string(reported) + " is reported, but it is number " +
         std::to_string(report_.restarts));
  if (report_.restarts > setup_.spec.max_restarts)
    fail("restart " + std::to_string(report_.restarts) + " of " + std::to_string(setup_.spec.max_restarts));
}

void SurvivorsWorld::check_end() {
  if (!supervisor_.finished()) return fail("nothing happens any more, and the job has not ended");
  for (const SimWorker& worker : workers_)
    if (worker.alive) return fail("a worker lives although the job has ended");
  const launcher::JobEnd& end = supervisor_.end();
  const launcher::ExitReport report = launcher::make_exit_report(end);
  report_.exit_code = report.exit_code;
  report_.why = report.why;
  report_.user_stopped = end.stop_signal != 0;
  for (const launcher::Failure& failure : end.earlier)
    if (!is_true(failure))
      return fail("attempt " + std::to_string(failure.attempt) + " is said to have failed since " +
                  launcher::failure_line(failure) + ", which is not true");
  if (report.exit_code != 0) {
    const launcher::Failure* cause = launcher::cause_of(end);
    if (cause != nullptr && !is_true(*cause)) fail("the job is said to have failed by " + report.why);
    if (cause == nullptr && !report_.user_stopped && mishaps_.empty()) fail("it failed by " + report.why);
    return;
  }
  const SimAttempt& last = attempts_.rbegin()->second;
  if (last.ended.size() != last.world) return fail("not all ranks of the last attempt ended well");
  for (const auto& [rank, hash] : last.ended)
    if (hash != last.ended.begin()->second)
      return fail("the weights of rank " + std::to_string(rank) + " differ");
  if (const auto wrong = history_.wrong_with(last.ended.begin()->second, setup_.epochs)) fail(*wrong);
}

/// Checks a reported failure. A worker's failure must be a death that occurred and that ddplaunch did not
/// order. A failure of a node or of the job must follow shortly after a fault.
bool SurvivorsWorld::is_true(const launcher::Failure& failure) const {
  using Kind = launcher::Failure::Kind;
  constexpr Time kLater = 180s;
  const auto lately = [&](const SimFault& mishap) {
    const bool here =
        failure.kind != Kind::kNode || !mishap.host || supervisor_.nodes()[*mishap.host].name == failure.host;
    return here && mishap.from <= failure.happened.latest &&
           failure.happened.earliest <= mishap.until + kLater;
  };
  const bool befallen = std::any_of(mishaps_.begin(), mishaps_.end(), lately);
  if (!failure.of_worker()) return befallen;
  return befallen && std::any_of(deaths_.begin(), deaths_.end(), [&](const SimDeath& death) {
           return death.attempt == failure.attempt && static_cast<int>(death.rank) == failure.rank &&
                  supervisor_.nodes()[death.host].name == failure.host && death.by != SimDeath::By::kUs &&
                  death.code == failure.status && death.signal == failure.signal;
         });
}

}  // namespace ddp::sim
