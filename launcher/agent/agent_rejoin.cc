// The part of the Agent that handles workers which survive attempts (docs/developers/worker_protocol.md).
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <utility>

#include "launcher/agent/agent.h"

namespace ddp::launcher {
namespace {

/// The time to reap ended workers and read their output, even if their children hold the pipes.
constexpr std::chrono::milliseconds kSettleTime{1'000};
/// The time for a disk to remove small files.
constexpr std::chrono::milliseconds kRemoveTime{200};
constexpr std::size_t kTroubleBytes = 1'000;

std::string in_seconds(std::uint32_t ms) {
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

std::string host_and_port(const std::string& address, std::uint16_t port) {
  const bool six = address.find(':') != std::string::npos;
  return (six ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

}  // namespace

// ---- an attempt begins

/// Makes sockets for the workers that will be started; survivors keep theirs.
std::vector<std::string> Agent::expect_workers(std::uint32_t count) {
  std::vector<std::string> controls(count);
  if (!worker_link_) {
    worker_link_ = std::make_unique<WorkerLink>(loop_.get_executor(), *this);
    const char* base = std::getenv("TMPDIR");
    if (auto made = worker_link_->open(base != nullptr ? base : ""); !made) {
      link_.send(rendezvous::Notice{"the workers get no DDPLAUNCH_CONTROL: " + made.error().text, true});
      worker_link_.reset();
      return {};
    }
    keeper_.set_directory(worker_link_->directory());
  }
  for (std::uint32_t local = 0; local < count; ++local) {
    if (processes_.is_alive(local)) continue;
    if (auto control = worker_link_->expect(local)) controls[local] = std::move(*control);
  }
  return controls;
}

/// Waits only briefly, because the disk may hang.
Awaitable<> Agent::remove_files(std::vector<std::string> files) {
  std::function<Result<>()> remove = [files = std::move(files)] {
    for (const std::string& file : files)
      ::unlink(file.c_str());
    return Result<>();
  };
  (void)co_await disk_.run(std::move(remove), Clock::now() + kRemoveTime);
}

/// Survivors keep writing to their files. The files of ended workers have been read.
void Agent::keep_error_files(std::vector<std::string> files) {
  std::vector<std::string> read;
  for (std::size_t local = 0; local < error_files_.size(); ++local) {
    if (!processes_.is_alive(static_cast<std::uint32_t>(local)))
      read.push_back(error_files_[local]);
    else if (local < files.size())
      files[local] = error_files_[local];
  }
  if (!read.empty()) spawn(loop_.get_executor(), remove_files(std::move(read)));
  error_files_ = std::move(files);
}

void Agent::report_survivors() {
  for (const auto& [local, process] : processes_.all()) {
    link_.send(rendezvous::WorkerStarted{attempt_, first_rank_ + local,
                                         static_cast<std::uint32_t>(process.pid), process.started_ns,
                                         process.start_attempt});
    evidence_.worker_started(process.pid);
    if (hang_monitor_) hang_monitor_->worker_started(first_rank_ + local, process.pid);
  }
}

void Agent::order_attempt(const rendezvous::Spawn& spawn, std::uint32_t local) {
  if (!worker_link_) return;
  rendezvous::AttemptOrder order;
  order.attempt = spawn.attempt;
  order.rank = spawn.first_rank + local;
  order.world = spawn.world_size;
  order.local_rank = local;
  order.local_world = spawn.local_world_size;
  order.node_rank = spawn.node_rank;
  order.nodes = spawn.nodes;
  order.store = host_and_port(spawn.master_addr, spawn.master_port);
  order.agent_store = spawn.agent_store;
  if (spawn.from >= 0) order.from = static_cast<std::uint32_t>(spawn.from);
  worker_link_->begin(local, std::move(order));
}

// ---- messages from workers

void Agent::worker_greeted(std::uint32_t local, const rendezvous::WorkerHello& hello) {
  processes_.greeted(local, hello.rejoin && !hello.sharded);
  if (!waiting_ && !workers_->starting() && processes_.take_greeted_change())
    link_.send(rendezvous::WorkersGreeted{attempt_});
}

void Agent::worker_ready(std::uint32_t local) {
  processes_.ready(local);
  if (!waiting_ && !workers_->starting() && processes_.take_ready_change())
    link_.send(rendezvous::WorkersReady{attempt_});
}

void Agent::worker_unlinked(std::uint32_t local) {
  if (hang_monitor_) hang_monitor_->worker_steps_no_more(first_rank_ + local);
}

void Agent::worker_stepped(std::uint32_t local, const rendezvous::WorkerStep& step) {
  if (hang_monitor_) hang_monitor_->worker_stepped(first_rank_ + local, step.step, step.phase);
}

void Agent::worker_in_trouble(std::uint32_t local, const rendezvous::WorkerTrouble& trouble) {
  if (trouble.attempt != attempt_ || waiting_) return;
  link_.send(rendezvous::WorkerInTrouble{attempt_, first_rank_ + local,
                                         trouble.error.substr(0, kTroubleBytes), trouble.peers});
}

void Agent::worker_revoked(std::uint32_t local, const rendezvous::WorkerRevoked& answer) {
  if (answer.attempt != attempt_) return;
  processes_.answered(local, answer.step);
  revoke_step_.cancel();
}

void Agent::worker_misbehaved(std::uint32_t local, std::string words) {
  link_.send(rendezvous::Notice{"rank " + std::to_string(first_rank_ + local) + ": " + std::move(words)});
}

/// Call when the worker's process has ended.
void Agent::worker_gone(std::uint32_t local) {
  processes_.ended(local);
  if (worker_link_) worker_link_->forget(local);
  revoke_step_.cancel();
  if (leaving_attempt_) return;
  if (waiting_) return notify_survivors();
  if (!workers_->starting() && processes_.take_ready_change()) link_.send(rendezvous::WorkersReady{attempt_});
}

// ---- a revoke

void Agent::handle(const rendezvous::Revoke& message) {
  if (give_up_next(message.attempt)) return;
  const bool runs = workers_ && attempt_running_ && !waiting_ && message.attempt == attempt_;
  if (!runs || leaving_ || leaving_attempt_ || workers_->stopping()) return;
  // If no worker is alive, AttemptEnded follows as soon as their output is read: do not wait for the reader.
  if (!workers_->starting() && processes_.none()) return workers_->stop(std::chrono::milliseconds(0));
  leaving_attempt_ = true;
  spawn(loop_.get_executor(), leave_attempt(message));
}

/// The order matters: kill hung workers and what ended workers left, terminate workers that cannot rejoin,
/// then ask the others to leave. Then no survivor still hears from an ended worker when it leaves. A Stop
/// ends all of this.
Awaitable<> Agent::leave_attempt(rendezvous::Revoke order) {
  const Clock::time_point due = Clock::now() + std::chrono::milliseconds(order.deadline_ms);
  while (workers_->starting() && !workers_->stopping() && Clock::now() < due) {
    revoke_step_.expires_at(due);
    co_await revoke_step_.async_wait(kUseTuple);
  }
  if (workers_->starting()) workers_->stop(std::chrono::milliseconds(0));  // its disk hangs
  std::vector<std::uint32_t> gone = workers_->ended_ranks();
  for (const std::uint32_t rank : order.kill) {
    if (!processes_.is_alive(rank - first_rank_)) continue;
    kill_worker(rank - first_rank_, "hung and was killed");
    gone.push_back(rank - first_rank_);
  }
  co_await workers_->kill_leftovers(std::move(gone), kSettleTime);
  if (!workers_->stopping()) ask_to_leave(order);
  const auto awaited = [this] {
    return !workers_->stopping() && (!processes_.unanswered().empty() || !processes_.dying().empty());
  };
  while (awaited() && Clock::now() < due) {
    revoke_step_.expires_at(due);
    co_await revoke_step_.async_wait(kUseTuple);
  }
  if (!workers_->stopping()) {
    kill_the_late(order);
    co_await workers_->kill_leftovers(processes_.dying(), kSettleTime);
  }
  const Clock::time_point given_up = Clock::now() + kKillBound;
  while (awaited() && Clock::now() < given_up) {
    revoke_step_.expires_at(given_up);
    co_await revoke_step_.async_wait(kUseTuple);
  }
  if (awaited()) {  // not even SIGKILL ends it; only the sweep at the attempt's end would name it
    link_.send(rendezvous::Notice{"a worker does not end after SIGKILL; stopping all workers of this node"});
    workers_->stop(std::chrono::milliseconds(0));
  }
  co_await workers_->settled(kSettleTime);
  if (hang_monitor_) {
    hang_monitor_->stop();
    co_await hang_monitor_->idle();
  }
  waiting_ = !workers_->stopping() && !processes_.none();  // no more of their output is read
  if (!processes_.none()) {
    report_collectives();
    EvidenceCollector::SendEvidence send = [this](const rendezvous::WorkerEvidence& found) {
      link_.send(found);
    };
    co_await evidence_.collect(std::move(send));
    co_await link_.flushed();  // output first: the attempt's files are complete then
  }
  leaving_attempt_ = false;
  attempt_over_.cancel();
  if (waiting_) notify_survivors();  // otherwise AttemptEnded is the answer
}

void Agent::ask_to_leave(const rendezvous::Revoke& order) {
  for (const std::uint32_t local : processes_.unanswered()) {
    if (worker_link_ && worker_link_->can_rejoin(local)) continue;
    // The worker has just started, or its part is done and it may end freely: SIGTERM suffices for a while.
    processes_.kill(local, "");
    workers_->terminate(local);
  }
  for (const std::uint32_t local : processes_.unanswered())
    worker_link_->revoke(local, {attempt_, order.reason, order.deadline_ms});
}

void Agent::kill_the_late(const rendezvous::Revoke& order) {
  for (const std::uint32_t local : processes_.unanswered())
    kill_worker(local, "did not leave attempt " + std::to_string(attempt_) + " within " +
                           in_seconds(order.deadline_ms) + " and was killed");
}

void Agent::kill_worker(std::uint32_t local, std::string why) {
  processes_.kill(local, std::move(why));
  workers_->kill(local);
}

/// Call also when a survivor has died meanwhile. If none is left, AttemptEnded follows.
void Agent::notify_survivors() {
  if (processes_.none()) return;
  link_.send(rendezvous::AttemptRevoked{attempt_, processes_.survivors()});
}

}  // namespace ddp::launcher
