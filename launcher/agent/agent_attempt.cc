// The part of the Agent that carries out the core's actions on an attempt and its workers.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "base/secret.h"
#include "launcher/agent/agent.h"

namespace ddp::launcher {
namespace {

/// The time to reap ended workers and read their output, even if their children hold the pipes.
constexpr std::chrono::milliseconds kSettleTime{1'000};
/// The time for a disk to remove small files.
constexpr std::chrono::milliseconds kRemoveTime{200};

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

// ---- an attempt begins

void Agent::handle(const rendezvous::Spawn& message) {
  // The output of ended workers belongs to the previous attempt.
  if (core_.has_survivors()) workers_->drop_ended();
  feed(message);
}

void Agent::perform(const node::PrepareAttempt& action) {
  const rendezvous::Spawn& spawn = action.spawn;
  if (auto board = collectives_.make_room(spawn.local_world_size); !board)
    link_.send(rendezvous::Notice{"desync analysis is not available: " + board.error().text, true});
  auto workers = job_->workers(spawn, static_cast<int>(options_.facts.cores), make_error_prefix(),
                               expect_workers(spawn.local_world_size), collectives_.path());
  const Result<> room = room_for_workers(spawn.local_world_size);
  if (!workers || !room) return feed(node::AttemptImpossible{workers ? room.error() : workers.error()});
  if (workers->omp_threads && spawn.node_rank == 0 && spawn.attempt == 0) {
    link_.send(
        rendezvous::Notice{"OMP_NUM_THREADS is set to " + std::to_string(*workers->omp_threads) +
                           " for each worker (its share of the node's cores); export it to choose another"});
  }
  store_.workers_start();
  keep_error_files(std::move(workers->error_files));
  evidence_.begin(spawn.attempt, spawn.first_rank, error_files_);
  if (core_.processes().none()) {
    workers_ = std::make_unique<WorkerGroup>(loop_.get_executor(), *this, tree_.begin(spawn.attempt));
    link_.send(rendezvous::Notice{tree_.how(), true});
  }
  monitor_hangs(workers->specs);
  for (const auto& [local, process] : core_.processes().all()) {
    evidence_.worker_started(process.pid);
    if (hang_monitor_) hang_monitor_->worker_started(rank_of(local), process.pid);
  }
  std::erase_if(workers->specs,
                [this](const WorkerSpec& spec) { return core_.processes().is_alive(spec.rank); });
  prepared_ = std::move(workers->specs);
  feed(node::AttemptPrepared{});
}

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
    if (core_.processes().is_alive(local)) continue;
    if (auto control = worker_link_->expect(local)) controls[local] = std::move(*control);
  }
  return controls;
}

void Agent::perform(const node::OrderAttempt& action) {
  if (worker_link_) worker_link_->begin(action.local, action.order);
}

void Agent::perform(const node::StartWorkers&) {
  const bool first = core_.processes().none();
  if (std::any_of(prepared_.begin(), prepared_.end(), [](const WorkerSpec& s) { return s.wants_stdin; }))
    stdin_.start = stdin_.given;
  workers_->start(std::exchange(prepared_, {}));
  workers_->resume_output();
  if (first) spawn(loop_.get_executor(), watch_workers());
  // A restarted rank 0 reads on where the previous one stopped.
  if ((stdin_.ended || !stdin_.pending.empty()) && !std::exchange(stdin_.busy, true))
    spawn(loop_.get_executor(), feed_stdin());
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
    if (!core_.processes().is_alive(static_cast<std::uint32_t>(local)))
      read.push_back(error_files_[local]);
    else if (local < files.size())
      files[local] = error_files_[local];
  }
  if (!read.empty()) spawn(loop_.get_executor(), remove_files(std::move(read)));
  error_files_ = std::move(files);
}

// ---- a revoke

void Agent::perform(const node::OrderLeave& action) {
  worker_link_->revoke(action.local, action.order);
}

void Agent::perform(const node::KillLeftovers& action) {
  revoke_tasks_.start(kill_leftovers(action.locals));
}

Awaitable<> Agent::kill_leftovers(std::vector<std::uint32_t> locals) {
  co_await workers_->kill_leftovers(std::move(locals), kSettleTime);
  feed(node::LeftoversKilled{});
}

void Agent::perform(const node::ReadOutput&) {
  revoke_tasks_.start(read_output());
}

Awaitable<> Agent::read_output() {
  co_await workers_->settled(kSettleTime);
  co_await stop_monitoring();
  feed(node::OutputRead{});
}

void Agent::perform(const node::ReportLosses&) {
  revoke_tasks_.start(report_losses());
}

Awaitable<> Agent::report_losses() {
  report_collectives();
  co_await collect_evidence();
  co_await link_.flushed();  // output first: the attempt's files are complete then
  feed(node::LossesReported{});
}

// ---- an attempt ends

void Agent::perform(const node::StopWorkers& action) {
  const std::chrono::milliseconds grace(action.order.grace_ms);
  if (hang_monitor_) hang_monitor_->stop();
  if (worker_link_) worker_link_->stop(action.order);
  workers_->resume_output();  // output from here on is part of the workers' last attempt
  workers_->stop(grace);
  evidence_.kills_from(Clock::now() + grace);
}

Awaitable<> Agent::watch_workers() {
  co_await workers_->ended();
  feed(node::WorkersEnded{});
}

void Agent::perform(const node::CleanUp&) {
  spawn(loop_.get_executor(), clean_up());
}

/// Processes that the workers left behind (daemons, loaders in their own sessions) end with the attempt.
Awaitable<> Agent::clean_up() {
  co_await revoke_tasks_.all_ends();
  co_await stop_monitoring();
  const std::vector<LeftProcess> left = co_await tree_.end();
  if (evidence_.any()) report_collectives();
  co_await collect_evidence();
  co_await remove_files(std::exchange(error_files_, {}));
  co_await link_.flushed();  // output first: the master takes AttemptEnded as the last message
  node::AttemptCleaned cleaned{static_cast<std::uint32_t>(left.size()), {}};
  for (const LeftProcess& process : left)
    cleaned.text += (cleaned.text.empty() ? "" : ", ") + process.text();
  feed(cleaned);
}

Awaitable<> Agent::collect_evidence() {
  EvidenceCollector::SendEvidence send = [this](const rendezvous::WorkerEvidence& found) {
    link_.send(found);
  };
  co_await evidence_.collect(std::move(send));
}

/// Reports the collectives of a failed attempt. The master compares them and names the rank for which the
/// others waited.
void Agent::report_collectives() {
  const rendezvous::Spawn& attempt = core_.attempt();
  for (std::uint32_t local = 0; local < attempt.local_world_size; ++local) {
    std::string log = collectives_.text(local, rank_of(local), attempt.attempt);
    if (!log.empty())
      link_.send(rendezvous::WorkerCollectives{attempt.attempt, rank_of(local), std::move(log)});
  }
}

}  // namespace ddp::launcher
