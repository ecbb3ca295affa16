// The workers of the simulation. They train, and follow the worker protocol as
// rendezvous/worker_client/worker_client and apps/train/training/rejoin do.
#include <algorithm>
#include <csignal>
#include <utility>

#include "tests/sim/survivors_world.h"

namespace ddp::sim {

using namespace std::chrono_literals;
using namespace rendezvous;
using Activity = SimWorker::Activity;

namespace {

/// Limit of a rank that waits for others.
constexpr Time kCommTimeout = 12s;
constexpr Time kJoinTimeout = 25s;
constexpr std::uint64_t kCheckpointEvery = 8;

bool in_collectives(const SimWorker& worker) {
  return worker.doing >= Activity::kJoining && worker.doing <= Activity::kEnding;
}

}  // namespace

void SurvivorsWorld::say(SimWorker& worker, const WorkerMessage& word) {
  after_on(worker, kSimLineTime,
           [this, agent = worker.agent, local = worker.local, id = worker.id, line = encode_line(word)] {
             when_awake(agent, [this, agent, local, id, line] { worker_says(agent, local, id, line); });
           });
}

/// Emulates the thread of the client.
void SurvivorsWorld::hear(SimWorker& worker, const std::string& lines) {
  if (!worker.alive || worker.frozen) return;
  worker.lines.add(lines);
  for (;;) {
    const auto line = worker.lines.next();
    if (!line || !*line) return;
    const auto word = decode_agent_line(**line);
    if (!word) return fail("the agent sends what is no order");
    if (const auto* order = std::get_if<AttemptOrder>(&*word)) {
      if (worker.last && order->attempt <= *worker.last) continue;
      worker.last = order->attempt;
      worker.orders.push_back(*order);
      if (worker.doing == Activity::kIdle) next_attempt(worker);
    } else if (const auto* revoke = std::get_if<RevokeOrder>(&*word)) {
      const auto untaken =
          std::find_if(worker.orders.begin(), worker.orders.end(),
                       [&](const AttemptOrder& one) { return one.attempt == revoke->attempt; });
      if (untaken != worker.orders.end()) {
        worker.orders.erase(untaken);
        say(worker, WorkerRevoked{revoke->attempt, worker.held});
      } else if (worker.present && worker.present->attempt == revoke->attempt && !worker.revoked) {
        worker.revoked = true;
        release(worker);
      }
    }
  }
}

void SurvivorsWorld::next_attempt(SimWorker& worker) {
  ++worker.turn;
  worker.doing = Activity::kIdle;
  if (worker.orders.empty()) return;
  worker.present = worker.orders.front();
  worker.orders.pop_front();
  worker.revoked = worker.answered = false;
  worker.held.reset();
  const AttemptOrder& order = *worker.present;
  const auto found = attempts_.find(order.attempt);
  if (found == attempts_.end()) return fail("a rank is ordered into an attempt that was never begun");
  SimAttempt& attempt = found->second;
  if (order.world != attempt.world || order.rank >= order.world || order.from != attempt.from)
    return fail("rank " + std::to_string(order.rank) + " of attempt " + std::to_string(order.attempt) +
                " got another world");
  const auto other = attempt.ranks.find(order.rank);
  if (other != attempt.ranks.end() && other->second != worker.id)
    return fail("two workers have rank " + std::to_string(order.rank));
  attempt.ranks[order.rank] = worker.id;
  if (!order.from) worker.state.reset();
  worker.doing = Activity::kJoining;
  worker.round = 0;
  enter(worker);
  after_on(worker, kJoinTimeout, [this, id = worker.id, turn = worker.turn] {
    if (workers_[id].turn == turn) trouble(workers_[id], "not all ranks joined in time", {});
  });
}

// ---- collectives

void SurvivorsWorld::enter(SimWorker& worker) {
  const std::uint32_t number = worker.present->attempt;
  SimAttempt& attempt = attempts_[number];
  SimRound& round = attempt.rounds[worker.round];
  ++worker.turn;
  worker.in_round = true;
  round.number = worker.round;
  round.entered[worker.present->rank] = {worker.id, worker.doing, worker.state};
  if (cut_off(worker)) attempt.torn = true;
  if (round.entered.size() == attempt.world && !round.complete && (!attempt.torn || chance(30)))
    complete(round, number);
  if (!attempt.torn || round.complete) return;
  after_on(worker, some(1ms, kCommTimeout), [this, id = worker.id, turn = worker.turn] {
    if (workers_[id].turn == turn) trouble(workers_[id], "a collective timed out", {});
  });
}

bool SurvivorsWorld::cut_off(const SimWorker& one) const {
  const auto& ranks = attempts_.at(one.present->attempt).ranks;
  const auto takes_part = [&](std::uint32_t id) {
    return std::any_of(ranks.begin(), ranks.end(), [id](const auto& rank) { return rank.second == id; });
  };
  return std::any_of(peer_cuts_.begin(), peer_cuts_.end(), [&](const PeerCut& cut) {
    return cut.until > now_ && (cut.a == one.id || cut.b == one.id) && takes_part(cut.a) && takes_part(cut.b);
  });
}

void SurvivorsWorld::complete(SimRound& round, std::uint32_t number) {
  SimAttempt& attempt = attempts_[number];
  round.complete = true;
  const Activity doing = round.entered.begin()->second.doing;
  for (const auto& [rank, entered] : round.entered) {
    const SimWorker& worker = workers_[entered.worker];
    const bool here = worker.alive && worker.in_round && worker.present->attempt == number;
    if (entered.doing != doing) return fail("ranks of one attempt do different things");
    // Workers on a node that was given up, or whose agent must leave, may complete their current step, and no
    // further one.
    const SimAgent& agent = agents_[worker.agent];
    if (here && latest_round_.value_or(0) > number && agent.master_open && !agent.core.leaving())
      return fail("attempt " + std::to_string(number) + " goes on although attempt " +
                  std::to_string(*latest_round_) + " does");
  }
  latest_round_ = std::max(latest_round_.value_or(0), number);
  const bool fine = doing == Activity::kSharing ? share(round, attempt) : one_step(round, attempt);
  if (!fine && !round.failed) return;
  attempt.rounds.erase(attempt.rounds.begin(), attempt.rounds.lower_bound(round.number - 2));
  const auto outcome = std::make_shared<const SimOutcome>(SimOutcome{round.failed, round.why, round.result});
  for (const auto& [rank, entered] : round.entered) {
    SimWorker& worker = workers_[entered.worker];
    if (!worker.alive || !worker.in_round || worker.present->attempt != number) continue;
    after_on(worker, some(50us, chance(10) ? 2s : 20ms), [this, id = worker.id, turn = worker.turn, outcome] {
      if (workers_[id].turn == turn && workers_[id].alive && !workers_[id].frozen)
        round_done(workers_[id], *outcome);
    });
  }
}

/// Sends the state of `from` to all ranks. It must have the most steps, and equal any state with as many
/// steps.
bool SurvivorsWorld::share(SimRound& round, SimAttempt& attempt) {
  const int world = static_cast<int>(attempt.world);
  if (!attempt.from) {
    round.result = history_.resplit(checkpoint_, world);
    return true;
  }
  const auto& source = round.entered[*attempt.from].state;
  round.failed = !source;
  round.why = "rank " + std::to_string(*attempt.from) + " holds no state of the training";
  if (round.failed) return false;
  for (const auto& [rank, entered] : round.entered) {
    const auto& held = entered.state;
    if (!held || held->position.step < source->position.step) continue;
    if (held->position.step > source->position.step) {
      fail("rank " + std::to_string(rank) + " has come further than rank " + std::to_string(*attempt.from) +
           ", from which attempt " + std::to_string(attempt.number) + " takes the state");
    } else if (held->hash != source->hash) {
      fail("weights differ after step " + std::to_string(held->position.step) + ": those of rank " +
           std::to_string(rank) + " are not those of rank " + std::to_string(*attempt.from));
    }
  }
  round.result = history_.resplit(*source, world);
  if (setup_.bug == SurvivorsBug::kSplitKept) {
    round.result = *source;
    round.result.world_size = world;
  }
  return true;
}

/// Completes a training step. Joining and the last comparison complete here as well, and change nothing.
bool SurvivorsWorld::one_step(SimRound& round, SimAttempt& attempt) {
  const SimRound::Entered& first = round.entered.begin()->second;
  if (first.doing == Activity::kJoining) return true;
  std::vector<std::vector<std::uint32_t>> samples;
  for (const auto& [rank, entered] : round.entered) {
    const auto& state = entered.state;
    if (!state || state->hash != first.state->hash || state->position.step != first.state->position.step) {
      fail("ranks of attempt " + std::to_string(attempt.number) + " begin a step with different weights");
      return false;
    }
    samples.push_back(history_.samples_of(*state, static_cast<int>(rank)));
  }
  round.result = *first.state;
  if (first.state->position.epoch < setup_.epochs) round.result = history_.step(*first.state, samples);
  return true;
}

void SurvivorsWorld::round_done(SimWorker& worker, const SimOutcome& outcome) {
  worker.in_round = false;
  ++worker.turn;
  const std::uint32_t rank = worker.present->rank;
  if (outcome.failed) return trouble(worker, outcome.why, {});
  switch (worker.doing) {
    case Activity::kJoining:
      worker.doing = Activity::kSharing;
      worker.round = 1;
      enter(worker);
      return kill_one_of(SimulatedFault::kKilledSharing, worker.agent);
    case Activity::kSharing:
      worker.state = outcome.result;
      say(worker, WorkerReady{worker.present->attempt});
      return plan_next_round(worker);
    case Activity::kTraining:
      worker.state = outcome.result;
      if (rank == 0 && (worker.state->position.step % kCheckpointEvery == 0 ||
                        worker.state->position.epoch >= setup_.epochs))
        checkpoint_ = *worker.state;
      if (chance(3)) say(worker, WorkerStep{worker.state->position.step, "step"});
      return plan_next_round(worker);
    case Activity::kEnding:
      attempts_[worker.present->attempt].ended[rank] = worker.state->hash;
      return die(worker, SimDeath::By::kItself, 0, 0);
    case Activity::kLoading:
    case Activity::kIdle:
    case Activity::kTroubled:
    case Activity::kLeavingAttempt: return;
  }
}

void SurvivorsWorld::plan_next_round(SimWorker& worker) {
  const bool done = worker.state->position.epoch >= setup_.epochs;
  worker.doing = done ? Activity::kEnding : Activity::kTraining;
  const Time wait = done ? some(0s, 5ms) : some(setup_.step_time / 2, setup_.step_time * 3 / 2);
  after_on(worker, wait, [this, id = worker.id, turn = ++worker.turn] {
    SimWorker& later = workers_[id];
    if (later.turn != turn || !later.alive || later.frozen) return;
    ++later.round;
    enter(later);
  });
}

// ---- failures

/// The worker reports the trouble and waits for an order.
void SurvivorsWorld::trouble(SimWorker& worker, const std::string& why, std::vector<std::uint32_t> peers) {
  if (!worker.alive || worker.frozen || worker.revoked || !in_collectives(worker)) return;
  worker.doing = Activity::kTroubled;
  worker.in_round = false;
  const std::uint32_t attempt = worker.present->attempt;
  say(worker, WorkerTrouble{attempt, why, std::move(peers)});
  if (!std::exchange(attempts_[attempt].torn, true)) look_for_stall(attempt);
  after_on(worker, kOrderTime, [this, id = worker.id, turn = ++worker.turn] {
    if (workers_[id].turn == turn && !workers_[id].frozen) die(workers_[id], SimDeath::By::kItself, 1, 0);
  });
}

/// A rank that waits in a collective that cannot complete times out at its own time.
void SurvivorsWorld::look_for_stall(std::uint32_t number) {
  const auto found = attempts_.find(number);
  if (found == attempts_.end()) return;
  for (const auto& [rank, id] : found->second.ranks) {
    if (!workers_[id].alive || !workers_[id].in_round || workers_[id].present->attempt != number) continue;
    after_on(workers_[id], some(kCommTimeout / 2, kCommTimeout), [this, id = id, turn = workers_[id].turn] {
      if (workers_[id].turn == turn) trouble(workers_[id], "a collective timed out", {});
    });
  }
}

void SurvivorsWorld::release(SimWorker& worker) {
  const bool half = worker.in_round && worker.doing == Activity::kTraining;
  leave_attempt(worker, true);
  worker.doing = Activity::kLeavingAttempt;
  worker.in_round = false;
  const Time wait = std::exchange(worker.slow, false) ? some(2s, 9s) : some(1ms, 150ms);
  after_on(worker, wait, [this, id = worker.id, turn = ++worker.turn, half] {
    SimWorker& later = workers_[id];
    if (later.turn != turn || !later.alive || later.frozen) return;
    if (half && setup_.bug == SurvivorsBug::kHalfStepKept) {
      const auto mine = history_.samples_of(*later.state, static_cast<int>(later.present->rank));
      later.state = history_.step(*later.state, {mine});
    }
    if (later.state) later.held = later.state->position.step;
    say(later, WorkerRevoked{later.present->attempt, later.held});
    next_attempt(later);
  });
}

/// Closes the worker's sockets. The other ranks see it, unless its machine is gone.
void SurvivorsWorld::leave_attempt(SimWorker& worker, bool seen) {
  if (!worker.present || !(in_collectives(worker) || worker.doing == Activity::kTroubled)) return;
  const std::uint32_t number = worker.present->attempt;
  const auto found = attempts_.find(number);
  if (found == attempts_.end()) return;
  if (!std::exchange(found->second.torn, true)) look_for_stall(number);
  // After a few losses every other rank knows.
  constexpr int kNoticed = 8;
  if (!seen || ++found->second.losses > kNoticed) return;
  for (const auto& [rank, id] : found->second.ranks) {
    if (id == worker.id || !workers_[id].alive) continue;
    after_on(workers_[id], some(100us, 300ms), [this, id = id, number, lost = worker.present->rank] {
      SimWorker& other = workers_[id];
      if (other.present && other.present->attempt == number)
        trouble(other, "rank " + std::to_string(lost) + " closed the connection", {lost});
    });
  }
}

void SurvivorsWorld::die(SimWorker& worker, SimDeath::By by, int code, int signal) {
  if (!worker.alive) return;
  if (code != 0 || signal != 0) leave_attempt(worker, hosts_[agents_[worker.agent].host].down <= now_);
  worker.alive = false;
  ++worker.turn;
  worker.in_round = false;
  worker.death = {by, agents_[worker.agent].host, 0, 0, code, signal};
  after_on(worker, some(100us, 20ms), [this, agent = worker.agent, local = worker.local, id = worker.id] {
    when_awake(agent, [this, agent, local, id] { reap(agent, local, id); });
  });
}

}  // namespace ddp::sim
