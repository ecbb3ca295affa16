// The part of the Agent that begins and ends an attempt. agent_rejoin.cc handles workers that survive
// attempts.
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/secret.h"
#include "launcher/agent/agent.h"

namespace ddp::launcher {
namespace {

/// The prefix of the files to which `@record` writes exceptions. The name cannot be guessed, and a file
/// exists only if a worker wrote one, so a killed agent leaves no file behind.
std::string make_error_prefix() {
  const char* base = std::getenv("TMPDIR");
  const auto random = random_text(8);
  if (!random) return {};
  return std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/ddplaunch-" + *random + "-rank_";
}

/// Returns kSystem with the numbers if this process may not open enough descriptors for that many workers.
Result<> room_for_workers(std::size_t workers) {
  constexpr std::size_t kOwn = 28;
  constexpr std::size_t kEach = 5;
  constexpr std::size_t kStarting = 64;  // workers that start at a time have one more each
  const std::size_t needed = kOwn + kEach * workers + std::min(workers, kStarting);
  struct rlimit files {};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return {};
  return Error{ErrorCode::kSystem,
               std::to_string(workers) + (workers == 1 ? " worker needs " : " workers need ") +
                   std::to_string(needed) + " open files on this node, but the hard limit is " +
                   std::to_string(files.rlim_cur) + "; raise it (ulimit -n " + std::to_string(needed) +
                   ", nofile in /etc/security/limits.conf, or LimitNOFILE= of the service)"};
}

}  // namespace

void Agent::handle(const rendezvous::Spawn& message) {
  if (!job_ || leaving_) return;
  const bool some_alive = waiting_ && workers_->any_alive();
  if (attempt_running_ && !some_alive) {  // the last workers of the previous attempt are being ended
    next_spawn_ = message;
    return;
  }
  // On the master's own machine, a lease is needed if an attempt may follow: the two must not overlap.
  leased_ = !local_ || message.max_restarts > 0;
  lease_.proven(accepted_at_);  // a slow disk may have delayed our answer to a Ping
  // Renew before the first worker starts: if the agent freezes right after that, the keeper must know the
  // lease.
  renew_lease();
  if (!begin_attempt(message)) return;
  if (!std::exchange(attempt_running_, true)) spawn(loop_.get_executor(), finish_attempt());
  // A restarted rank 0 reads on where the previous one stopped.
  if ((stdin_ended_ || !stdin_pending_.empty()) && !std::exchange(stdin_busy_, true))
    spawn(loop_.get_executor(), feed_stdin());
}

/// Starts the workers, except survivors, which get the order for the new attempt.
bool Agent::begin_attempt(const rendezvous::Spawn& message) {
  if (auto board = collectives_.make_room(message.local_world_size); !board)
    link_.send(rendezvous::Notice{"desync analysis is not available: " + board.error().text, true});
  auto workers = job_->workers(message, static_cast<int>(options_.facts.cores), make_error_prefix(),
                               expect_workers(message.local_world_size), collectives_.path());
  const Result<> room = room_for_workers(message.local_world_size);
  if (!workers || !room) {
    refuse(workers ? room.error() : workers.error());
    if (attempt_running_) workers_->stop(std::chrono::milliseconds(0));
    return false;
  }
  if (workers->omp_threads && message.node_rank == 0 && message.attempt == 0) {
    link_.send(
        rendezvous::Notice{"OMP_NUM_THREADS is set to " + std::to_string(*workers->omp_threads) +
                           " for each worker (its share of the node's cores); export it to choose another"});
  }
  if (attempt_running_) workers_->drop_ended();  // their output belongs to the previous attempt
  attempt_ = message.attempt;
  first_rank_ = message.first_rank;
  ranks_ = message.local_world_size;
  waiting_ = false;
  processes_.begin_attempt();
  store_.workers_start();
  keep_error_files(std::move(workers->error_files));
  evidence_.begin(attempt_, first_rank_, error_files_);
  if (!attempt_running_) {
    workers_ = std::make_unique<WorkerGroup>(loop_.get_executor(), *this, tree_.begin(attempt_));
    link_.send(rendezvous::Notice{tree_.how(), true});
  }
  monitor_hangs(workers->specs);
  report_survivors();
  for (std::uint32_t local = 0; local < message.local_world_size; ++local)
    order_attempt(message, local);
  std::erase_if(workers->specs, [this](const WorkerSpec& spec) { return processes_.is_alive(spec.rank); });
  workers_->start(std::move(workers->specs));
  workers_->resume_output();
  return true;
}

/// True: the attempt still waited here for the previous workers to end, and is over before it began.
bool Agent::give_up_next(std::uint32_t attempt) {
  if (!next_spawn_ || next_spawn_->attempt != attempt) return false;
  next_spawn_.reset();
  link_.send(rendezvous::AttemptEnded{attempt, 0, {}});
  return true;
}

void Agent::handle(const rendezvous::Stop& message) {
  if (give_up_next(message.attempt)) return;
  if (workers_ && attempt_running_ && message.attempt == attempt_) {
    if (hang_monitor_) hang_monitor_->stop();
    if (worker_link_) worker_link_->stop({message.reason, message.grace_ms});
    const std::chrono::milliseconds grace(message.grace_ms);
    waiting_ = false;  // output from here on is part of their last attempt
    workers_->resume_output();
    workers_->stop(grace);
    revoke_step_.cancel();
    evidence_.kills_from(Clock::now() + grace);
  }
}

Awaitable<> Agent::finish_attempt() {
  co_await workers_->ended();
  while (leaving_attempt_)  // it sees that all workers have ended
    co_await attempt_over_.async_wait(kUseTuple);
  if (hang_monitor_) {
    hang_monitor_->stop();
    co_await hang_monitor_->idle();  // its tools must not count as leftovers of the workers
  }
  // Processes that the workers left behind (daemons, loaders in their own sessions) end with the attempt.
  const std::vector<LeftProcess> left = co_await tree_.end();
  if (evidence_.any()) report_collectives();
  EvidenceCollector::SendEvidence send = [this](const rendezvous::WorkerEvidence& found) {
    link_.send(found);
  };
  co_await evidence_.collect(std::move(send));
  co_await remove_files(std::exchange(error_files_, {}));
  co_await link_.flushed();  // output first: the master takes AttemptEnded as the last message
  rendezvous::AttemptEnded ended;
  ended.attempt = attempt_;
  ended.left = static_cast<std::uint32_t>(left.size());
  for (const LeftProcess& process : left)
    ended.left_text += (ended.left_text.empty() ? "" : ", ") + process.text();
  link_.send(ended);
  // No await after AttemptEnded, so that the master's next order finds this agent free.
  attempt_running_ = waiting_ = false;
  attempt_over_.cancel();
  if (!next_spawn_) co_return;
  if (!left.empty()) {  // the next attempt must not run beside them
    next_spawn_.reset();
    co_return resign("processes of the previous attempt could not be killed: " + ended.left_text);
  }
  const rendezvous::Spawn next = *std::exchange(next_spawn_, std::nullopt);
  handle(next);
}

/// Reports the collectives of a failed attempt. The master compares them and names the rank for which the
/// others waited.
void Agent::report_collectives() {
  for (std::uint32_t local = 0; local < ranks_; ++local) {
    std::string log = collectives_.text(local, first_rank_ + local, attempt_);
    if (!log.empty())
      link_.send(rendezvous::WorkerCollectives{attempt_, first_rank_ + local, std::move(log)});
  }
}

}  // namespace ddp::launcher
