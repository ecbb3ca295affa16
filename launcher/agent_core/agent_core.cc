// AgentCore by subject: the lease, the start of an attempt, its workers, a revoke in the order of its states,
// the end of the attempt, the end of the agent. Last, WorkerProcesses. docs/developers/states.md has the
// table of states.
#include "launcher/agent_core/agent_core.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/exit_status.h"
#include "base/result.h"
#include "base/text.h"
#include "launcher/report/exit_report.h"

namespace ddp::launcher {

using namespace std::chrono_literals;

namespace {

/// Heartbeats are due once a second. After a longer pause this process slept: it was stopped or frozen, or
/// its machine was suspended.
constexpr std::chrono::seconds kOverslept{2};
/// In this time a master on the same machine that slept, too, sends the Ping that renews the lease.
constexpr std::chrono::seconds kMasterWakes{5};

template <class E, class... Events>
constexpr bool is_any_of = (std::is_same_v<std::remove_cvref_t<E>, Events> || ...);

}  // namespace

node::Actions AgentCore::step(const node::Event& event, Time now) {
  now_ = now;
  if (now_ > beat_at_ + kOverslept) {
    beat_at_ = now_;
    if (!std::exchange(slept_, true)) woke_at_ = now_;
  }
  std::visit(
      [this](const auto& e) {
        // After the end of the lease it is too late for these. A Leave ends the workers in any case.
        if constexpr (is_any_of<decltype(e), node::Pinged, rendezvous::OpenStore, rendezvous::Revoke,
                                rendezvous::Stop>)
          if (!leaving_ && running() && is_lease_over()) lose_master();
        on(e);
      },
      event);
  DDP_REQUIRE(running() || (processes_.none() && !next_), spawn_.attempt);
  return std::exchange(actions_, {});
}

std::optional<AgentCore::Time> AgentCore::deadline() const {
  const bool waits = state_ == State::kAwaitingStart || state_ == State::kAwaitingAnswers ||
                     state_ == State::kAwaitingDeaths;
  return waits ? std::optional(due_) : std::nullopt;
}

bool AgentCore::takes_stdin() const {
  return state_ == State::kStarting || state_ == State::kRunning || state_ == State::kStopping ||
         state_ == State::kCleaning;
}

void AgentCore::refuse(const Error& error) {
  send(rendezvous::Refused{error.code, error.sys, error.text});
}

// ---- the job, and the lease

void AgentCore::on(const node::JobReceived& event) {
  settings_.patience = event.patience;
  settings_.link_grace = event.link_grace;
  settings_.may_restart = event.may_restart;
  lease_ = NodeLease(settings_.patience, now_);
}

/// If this node freezes, its workers must not train on while the job continues elsewhere. On the master's own
/// machine a freeze stops the master, too; there, a lease is needed only if an attempt may follow.
void AgentCore::on(const node::JobAccepted& event) {
  accepted_at_ = now_;
  local_ = event.local;
}

void AgentCore::on(const node::Pinged&) {
  lease_.pinged(now_);
  slept_ = false;
  if (is_leased()) renew_lease();
}

/// For how long a node that slept waits for its master, which may have slept as well: a scheduler suspends
/// all processes of a job. Where no other attempt can begin meanwhile, a whole lease. On the master's machine
/// the keeper kills at the end of the lease unless the master sleeps, so the agent may wait for the Ping of a
/// master that has just woken.
AgentCore::Time AgentCore::wake_time() const {
  return !settings_.may_restart ? settings_.patience : local_ ? Time(kMasterWakes) : Time(0);
}

/// The keeper kills the remaining workers when lease and grace have passed.
void AgentCore::renew_lease() {
  if (!is_leased()) return act(node::RenewKeeper{});
  Time end = lease_.ends_at();
  if (!settings_.may_restart) end = std::max(end, woke_at_ + wake_time());
  if (end <= now_ && !is_lease_over()) return;  // the keeper knows this end, and whether the master sleeps
  act(node::SetLease{std::max<Time>(end + settings_.link_grace - now_, 1ms)});
}

void AgentCore::on(const node::HeartbeatDue& event) {
  beat_at_ = now_;
  // Silence while this process slept may be its own fault.
  const bool silent = std::min(event.silence, now_ - woke_at_) > settings_.patience;
  // With workers that have a lease the lease decides; without, the plain silence of the master.
  const bool lost = running() && is_leased() ? is_lease_over() : silent;
  if (lost) lose_master();
  renew_lease();
}

// ---- an attempt begins

void AgentCore::on(const rendezvous::OpenStore& order) {
  if (leaving_) return;
  // Workers that are being ended need no store; survivors without an attempt do.
  if (running() && !holds_output() && state_ != State::kStopping && state_ != State::kCleaning) {
    return refuse({ErrorCode::kProtocol,
                   "the master asked for the store of attempt " + std::to_string(order.attempt) +
                       " while attempt " + std::to_string(spawn_.attempt) + " runs here",
                   0});
  }
  act(node::OpenStore{order});
}

void AgentCore::on(const rendezvous::Spawn& order) {
  if (!accepted_at_ || leaving_) return;
  if (running() && !has_survivors()) {
    // The last survivor may have died after AttemptRevoked was sent. The order waits until what it left has
    // ended.
    next_ = order;
    return;
  }
  // Kept until the attempt is prepared: if that fails, survivors still belong to it.
  previous_ = std::exchange(spawn_, order);
  lease_.proven(*accepted_at_);  // a slow disk may have delayed our answer to a Ping
  if (is_lease_over()) return lose_master();
  // Renew before the first worker starts: if the agent freezes right after that, the keeper must know the
  // lease.
  renew_lease();
  processes_.begin_attempt();
  state_ = State::kStarting;
  act(node::PrepareAttempt{order});
}

void AgentCore::on(const node::AttemptImpossible& event) {
  DDP_REQUIRE(state_ == State::kStarting, state_);
  refuse(event.error);
  state_ = State::kNone;
  if (processes_.none()) return;
  spawn_ = previous_;  // survivors end as workers of the attempt that they were in
  stop_workers(event.error.text, 0ms);
}

void AgentCore::on(const node::AttemptPrepared&) {
  DDP_REQUIRE(state_ == State::kStarting, state_);
  for (const auto& [local, process] : processes_.all()) {
    // Survivors may have other ranks now, by which the master finds their processes.
    send(rendezvous::WorkerStarted{spawn_.attempt, spawn_.first_rank + local,
                                   static_cast<std::uint32_t>(process.pid), process.started_ns,
                                   process.start_attempt});
  }
  rendezvous::AttemptOrder order;
  order.attempt = spawn_.attempt;
  order.world = spawn_.world_size;
  order.local_world = spawn_.local_world_size;
  order.node_rank = spawn_.node_rank;
  order.nodes = spawn_.nodes;
  order.store = format_endpoint(spawn_.master_addr, spawn_.master_port);
  order.agent_store = spawn_.agent_store;
  if (spawn_.from >= 0) order.from = static_cast<std::uint32_t>(spawn_.from);
  for (std::uint32_t local = 0; local < spawn_.local_world_size; ++local) {
    order.local_rank = local;
    order.rank = spawn_.first_rank + local;
    act(node::OrderAttempt{local, order});
  }
  act(node::StartWorkers{});
}

void AgentCore::on(const node::WorkersStarted&) {
  if (state_ == State::kStarting) {
    state_ = State::kRunning;
    report_changes();
  } else if (state_ == State::kAwaitingStart) {
    kill_hung();
  }
}

// ---- workers

void AgentCore::on(const node::WorkerStarted& event) {
  DDP_REQUIRE(running() && state_ != State::kCleaning, state_);
  DDP_REQUIRE(event.local < spawn_.local_world_size, event.local, spawn_.local_world_size);
  WorkerProcess process;
  process.pid = static_cast<pid_t>(event.pid);
  process.start_attempt = spawn_.attempt;
  process.started_ns = event.clock_ns;
  processes_.started(event.local, process);
  send(rendezvous::WorkerStarted{spawn_.attempt, spawn_.first_rank + event.local, event.pid, event.clock_ns,
                                 spawn_.attempt});
}

void AgentCore::on(const node::WorkerExited& event) {
  rendezvous::WorkerExited exited = event.exit;
  exited.attempt = spawn_.attempt;
  exited.rank = spawn_.first_rank + event.local;
  const std::string* killed = processes_.killed(event.local);
  exited.by_revoke = killed != nullptr;
  if (killed != nullptr) exited.text = *killed;
  exited.non_retryable = killed == nullptr && processes_.is_non_retryable(event.local);
  const bool never_ran = exited.pid == 0;
  // Before the consequences below, so that the master knows the end when it hears of them.
  send(std::move(exited));
  if (never_ran) return;
  processes_.ended(event.local);
  // The master chooses the next attempt's source of state from this list, and must not choose a dead one.
  if (state_ == State::kSuspended) notify_survivors();
  check_answers();
  check_deaths();
  if (state_ == State::kRunning && processes_.take_ready_change())
    send(rendezvous::WorkersReady{spawn_.attempt});
}

/// Reports facts about all workers of the node, once in an attempt.
void AgentCore::report_changes() {
  if (state_ != State::kRunning) return;
  if (processes_.take_greeted_change()) send(rendezvous::WorkersGreeted{spawn_.attempt});
  if (processes_.take_ready_change()) send(rendezvous::WorkersReady{spawn_.attempt});
}

void AgentCore::on(const node::WorkerGreeted& event) {
  processes_.greeted(event.local, event.can_rejoin);
  report_changes();
}

void AgentCore::on(const node::WorkerReady& event) {
  processes_.ready(event.local);
  report_changes();
}

void AgentCore::on(const node::WorkerTroubled& event) {
  constexpr std::size_t kTroubleBytes = 1'000;
  // It says something about the worker's end, which follows.
  if (!event.trouble.retry) return processes_.reported_non_retryable(event.local);
  if (event.trouble.attempt != spawn_.attempt || holds_output()) return;
  send(rendezvous::WorkerInTrouble{spawn_.attempt, spawn_.first_rank + event.local,
                                   event.trouble.error.substr(0, kTroubleBytes), event.trouble.peers});
}

void AgentCore::on(const node::WorkerLeft& event) {
  if (event.answer.attempt != spawn_.attempt) return;
  processes_.answered(event.local, event.answer.step);
  check_answers();
}

// ---- a revoke

/// True: the attempt still waited here for the previous workers to end, and is over before it began.
bool AgentCore::give_up_next(std::uint32_t attempt) {
  if (!next_ || next_->attempt != attempt) return false;
  next_.reset();
  send(rendezvous::AttemptEnded{attempt, 0, {}});
  return true;
}

void AgentCore::on(const rendezvous::Revoke& order) {
  if (give_up_next(order.attempt)) return;
  const bool runs = state_ == State::kStarting || state_ == State::kRunning;
  if (!runs || leaving_ || order.attempt != spawn_.attempt) return;
  // If no worker is alive, AttemptEnded follows as soon as their output is read: do not wait for its reader.
  if (state_ == State::kRunning && processes_.none()) return stop_workers(order.reason, 0ms);
  revoke_ = order;
  due_ = now_ + std::chrono::milliseconds(order.deadline_ms);
  if (state_ == State::kRunning) return kill_hung();
  state_ = State::kAwaitingStart;
}

void AgentCore::on(const node::Tick&) {
  if (state_ == State::kAwaitingStart && now_ >= due_)
    return stop_workers(revoke_.reason, 0ms);  // a disk hangs
  check_answers();
  check_deaths();
}

void AgentCore::kill_hung() {
  for (const std::uint32_t rank : revoke_.kill)
    if (processes_.is_alive(rank - spawn_.first_rank))
      kill_worker(rank - spawn_.first_rank, "hung and was killed");
  std::vector<std::uint32_t> gone;
  for (std::uint32_t local = 0; local < spawn_.local_world_size; ++local)
    if (!processes_.is_alive(local) || processes_.killed(local) != nullptr) gone.push_back(local);
  if (gone.empty()) return ask_to_leave();
  state_ = State::kKillingHung;
  act(node::KillLeftovers{std::move(gone)});
}

void AgentCore::on(const node::LeftoversKilled&) {
  if (state_ == State::kKillingHung) return ask_to_leave();
  if (state_ != State::kKillingLate) return;
  state_ = State::kAwaitingDeaths;
  due_ = now_ + settings_.kill_bound;
  check_deaths();
}

void AgentCore::ask_to_leave() {
  // A worker that cannot rejoin has just started, or has finished its part, so SIGTERM suffices at first. The
  // signal comes first, so that no survivor still hears from such a worker when it leaves.
  for (const std::uint32_t local : processes_.unanswered()) {
    if (processes_.can_rejoin(local)) continue;
    processes_.kill(local, "");
    act(node::TerminateWorker{local});
  }
  for (const std::uint32_t local : processes_.unanswered())
    act(node::OrderLeave{local, {spawn_.attempt, revoke_.reason, revoke_.deadline_ms}});
  state_ = State::kAwaitingAnswers;
  check_answers();
}

void AgentCore::check_answers() {
  if (state_ != State::kAwaitingAnswers) return;
  const std::vector<std::uint32_t> late = processes_.unanswered();
  if (late.empty() && processes_.dying().empty()) {
    state_ = State::kReadingOutput;
    return act(node::ReadOutput{});
  }
  if (now_ < due_) return;
  for (const std::uint32_t local : late)
    kill_worker(local, "did not leave attempt " + std::to_string(spawn_.attempt) + " within " +
                           format_duration(std::chrono::milliseconds(revoke_.deadline_ms)) +
                           " and was killed");
  state_ = State::kKillingLate;
  act(node::KillLeftovers{processes_.dying()});
}

void AgentCore::check_deaths() {
  if (state_ != State::kAwaitingDeaths) return;
  if (processes_.dying().empty()) {
    state_ = State::kReadingOutput;
    return act(node::ReadOutput{});
  }
  if (now_ < due_) return;
  // Not even SIGKILL ends it; only the sweep at the attempt's end would name it.
  send(rendezvous::Notice{"a worker does not end after SIGKILL; stopping all workers of this node"});
  stop_workers(revoke_.reason, 0ms);
}

void AgentCore::on(const node::OutputRead&) {
  if (state_ != State::kReadingOutput) return;
  if (processes_.none()) {
    state_ = State::kStopping;
    return;
  }
  state_ = State::kReportingLosses;
  act(node::ReportLosses{});
}

void AgentCore::on(const node::LossesReported&) {
  if (state_ != State::kReportingLosses) return;
  state_ = State::kSuspended;
  notify_survivors();
}

/// Also when a survivor has died meanwhile. If none is left, AttemptEnded follows.
void AgentCore::notify_survivors() {
  if (!processes_.none()) send(rendezvous::AttemptRevoked{spawn_.attempt, processes_.survivors()});
}

void AgentCore::kill_worker(std::uint32_t local, std::string why) {
  processes_.kill(local, std::move(why));
  act(node::KillWorker{local});
}

// ---- an attempt ends

void AgentCore::on(const rendezvous::Stop& order) {
  if (give_up_next(order.attempt)) return;
  if (running() && state_ != State::kCleaning && order.attempt == spawn_.attempt)
    stop_workers(order.reason, std::chrono::milliseconds(order.grace_ms), order.signal);
}

void AgentCore::stop_workers(std::string reason, std::chrono::milliseconds grace, int signal) {
  state_ = State::kStopping;
  // The value comes from a message, and a worker gets no other signal at a stop.
  if (signal != SIGINT && signal != SIGHUP) signal = SIGTERM;
  act(node::StopWorkers{{std::move(reason), static_cast<std::uint32_t>(grace.count())}, signal});
}

void AgentCore::on(const node::WorkersEnded&) {
  DDP_REQUIRE(running() && state_ != State::kCleaning, state_);
  state_ = State::kCleaning;
  act(node::CleanUp{});
}

void AgentCore::on(const node::AttemptCleaned& event) {
  DDP_REQUIRE(state_ == State::kCleaning, state_);
  send(rendezvous::AttemptEnded{spawn_.attempt, event.left, event.text});
  state_ = State::kNone;
  processes_ = {};  // a worker that outlived SIGKILL reported no end
  const std::optional<rendezvous::Spawn> next = std::exchange(next_, std::nullopt);
  if (leaving_) return act(node::Quit{});
  if (!next) return;
  // The next attempt must not run beside them.
  if (event.left > 0)
    return resign("processes of the previous attempt could not be killed: " + event.text, 0);
  on(*next);
}

// ---- the agent's end

void AgentCore::on(const rendezvous::Leave& order) {
  if (leaving_) return;
  if (settings_.joined_by_itself) exit_code_ = order.code;
  last_message_ = one_line(order.text);  // with --insecure, the master may be anyone
  leave();
}

void AgentCore::on(const node::LinkLost&) {
  lose_master();
}

void AgentCore::lose_master() {
  // Even if this agent is already leaving, since its messages have no reader any more.
  act(node::CloseLink{});
  if (leaving_) return;
  exit_code_ = exit_code_of(Error{ErrorCode::kLinkLost, "", 0});
  leave();
}

void AgentCore::on(const node::MustLeave& event) {
  resign(event.why, event.signal);
}

/// Leaves while the master still listens: reports the reason, and then the ends of the workers.
void AgentCore::resign(std::string why, int signal) {
  if (leaving_) return;
  const char* const who = settings_.joined_by_itself ? "its ddplaunch was " : "its agent was ";
  const Error error{ErrorCode::kLinkLost, (signal != 0 ? who : "") + why, signal};
  refuse(error);
  last_message_ = error.text;
  exit_code_ = exit_code_of(error);
  if (settings_.joined_by_itself && signal != 0) {  // the ddplaunch of this node ends as any stopped program
    last_message_ = why + "; the job has lost this node";
    exit_code_ = exit_code_of(Error{ErrorCode::kCancelled, "", signal});
  }
  leave(signal);
}

void AgentCore::leave(int signal) {
  leaving_ = true;
  act(node::StopPreparing{});
  if (!running()) return act(node::Quit{});
  if (state_ != State::kCleaning)
    stop_workers("the agent exits",
                 std::chrono::duration_cast<std::chrono::milliseconds>(settings_.link_grace), signal);
}

WorkerProcess* WorkerProcesses::find(std::uint32_t local) {
  const auto found = processes_.find(local);
  return found == processes_.end() ? nullptr : &found->second;
}

void WorkerProcesses::begin_attempt() {
  greeted_reported_ = ready_reported_ = false;
  for (auto& [local, process] : processes_) {
    DDP_REQUIRE(!process.killed, local, process.pid);
    process.ready = process.answered = false;
  }
}

void WorkerProcesses::started(std::uint32_t local, WorkerProcess process) {
  DDP_REQUIRE(!is_alive(local), local, process.pid);
  processes_.emplace(local, std::move(process));
}

void WorkerProcesses::greeted(std::uint32_t local, bool can_rejoin) {
  if (WorkerProcess* process = find(local)) process->can_rejoin = can_rejoin;
}

void WorkerProcesses::ready(std::uint32_t local) {
  if (WorkerProcess* process = find(local)) process->ready = true;
}

void WorkerProcesses::answered(std::uint32_t local, std::optional<std::uint64_t> held) {
  WorkerProcess* process = find(local);
  if (process == nullptr) return;
  process->answered = true;
  process->held = held;
}

void WorkerProcesses::reported_non_retryable(std::uint32_t local) {
  if (WorkerProcess* process = find(local)) process->non_retryable = true;
}

void WorkerProcesses::kill(std::uint32_t local, std::string why) {
  WorkerProcess* process = find(local);
  DDP_REQUIRE(process != nullptr, local, why);
  process->killed = std::move(why);
}

const std::string* WorkerProcesses::killed(std::uint32_t local) const {
  const auto found = processes_.find(local);
  return found != processes_.end() && found->second.killed ? &*found->second.killed : nullptr;
}

bool WorkerProcesses::is_non_retryable(std::uint32_t local) const {
  const auto found = processes_.find(local);
  return found != processes_.end() && found->second.non_retryable;
}

bool WorkerProcesses::take_greeted_change() {
  const bool all = std::all_of(processes_.begin(), processes_.end(),
                               [](const auto& entry) { return entry.second.can_rejoin; });
  return all && !processes_.empty() && !std::exchange(greeted_reported_, true);
}

bool WorkerProcesses::take_ready_change() {
  const bool all =
      std::all_of(processes_.begin(), processes_.end(), [](const auto& entry) { return entry.second.ready; });
  return all && !processes_.empty() && !std::exchange(ready_reported_, true);
}

std::vector<std::uint32_t> WorkerProcesses::unanswered() const {
  std::vector<std::uint32_t> late;
  for (const auto& [local, process] : processes_)
    if (!process.answered && !process.killed) late.push_back(local);
  return late;
}

std::vector<std::uint32_t> WorkerProcesses::dying() const {
  std::vector<std::uint32_t> dying;
  for (const auto& [local, process] : processes_)
    if (process.killed) dying.push_back(local);
  return dying;
}

std::vector<rendezvous::Survivor> WorkerProcesses::survivors() const {
  std::vector<rendezvous::Survivor> survivors;
  for (const auto& [local, process] : processes_) {
    if (process.killed) continue;
    survivors.push_back({local, process.answered && process.held.has_value(), process.held.value_or(0)});
  }
  return survivors;
}

}  // namespace ddp::launcher
