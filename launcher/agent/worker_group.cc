#include "launcher/agent/worker_group.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <utility>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/files.h"
#include "launcher/keeper/cgroup.h"
#include "launcher/keeper/process_table.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {
namespace {

/// The limit of the blocking kill. Every process has its SIGKILL by then; the loop waits for their ends.
constexpr std::chrono::milliseconds kKillTime{50};
/// The time for a worker's tracer to notice its end, and the pause between two checks of that.
constexpr std::chrono::seconds kTracerTime{2};
constexpr std::chrono::milliseconds kTracerPause{2};
/// The pause between two checks whether the output of ended workers was read.
constexpr std::chrono::milliseconds kSettlePause{1};
/// The number of workers that are started at a time.
constexpr std::size_t kBatch = 64;

}  // namespace

struct WorkerGroup::Worker {
  explicit Worker(asio::any_io_executor executor) : end(executor) {}
  std::uint32_t local_rank = 0;
  ChildProcess child;
  asio::posix::stream_descriptor end;  ///< a copy of the child's end_fd for the loop
  ExitStatus status;                   ///< once it has ended
  bool has_input = false;              ///< its stdin is a pipe
  bool terminated = false;             ///< its end had not begun when we sent a signal before SIGKILL
  bool killed = false;                 ///< its end had not begun when we sent SIGKILL
  bool ended = false;
  bool settled = false;  ///< ended, and its output was read
};

WorkerGroup::WorkerGroup(asio::any_io_executor executor, WorkerEvents& events, WorkerStdin& input,
                         TreeScope tree)
    : executor_(executor),
      events_(events),
      input_(input),
      tree_(std::move(tree)),
      pipes_(executor, events),
      timer_(executor),
      tasks_(executor) {}

WorkerGroup::~WorkerGroup() = default;

/// A worker between the creation of its pipes and its start.
struct WorkerGroup::Launch {
  std::uint32_t local_rank = 0;
  std::pair<UniqueFd, UniqueFd> in;  ///< only if it wants stdin
  std::pair<UniqueFd, UniqueFd> out;
  std::pair<UniqueFd, UniqueFd> err;
};

Result<WorkerGroup::Launch> WorkerGroup::prepare(WorkerSpec& spec) {
  Launch launch;
  launch.local_rank = spec.local_rank;
  launch.out = DDP_TRY(make_pipe("a pipe for a worker"));
  launch.err = DDP_TRY(make_pipe("a pipe for a worker"));
  if (spec.wants_stdin) launch.in = DDP_TRY(make_pipe("a pipe for a worker"));
  ChildSpec& child = spec.child;
  child.in = spec.wants_stdin ? launch.in.first.get() : kDevNull;
  child.out = launch.out.second.get();
  child.err = launch.err.second.get();
  child.death_signal = SIGKILL;
  return launch;
}

void WorkerGroup::start(std::vector<WorkerSpec> specs) {
  pipes_.restore_wait();
  if (!pool_) pool_ = std::make_unique<SpawnPool>(spawn_threads(specs.size()));
  starting_ = true;
  tasks_.start(start_all(this, std::move(specs)));
}

/// Starts workers in batches, because each child gets a copy of our descriptor table: fewer descriptors are
/// faster.
Awaitable<> WorkerGroup::start_all(WorkerGroup* group, std::vector<WorkerSpec> specs) {
  for (std::size_t begin = 0; begin < specs.size() && !group->stopping_; begin += kBatch) {
    std::vector<WorkerSpec> batch;
    for (std::size_t i = begin; i < std::min(begin + kBatch, specs.size()); ++i)
      batch.push_back(std::move(specs[i]));
    co_await start_batch(group, std::move(batch));
  }
  group->starting_ = false;
  group->events_.all_started();
}

Awaitable<> WorkerGroup::start_batch(WorkerGroup* group, std::vector<WorkerSpec> specs) {
  std::vector<Launch> launches;
  std::vector<ChildSpec> children;
  for (WorkerSpec& spec : specs) {
    auto launch = prepare(spec);
    if (!launch) {
      group->events_.worker_not_started(spec.local_rank, launch.error());
      continue;
    }
    if (const auto& cgroup = group->tree_.cgroup) {
      spec.child.cgroup = cgroup->directory();
      spec.child.cgroup_procs = cgroup->procs();
    }
    children.push_back(std::move(spec.child));
    launches.push_back(std::move(*launch));
  }
  auto started = co_await spawn_off_loop(group->executor_, group->pool_.get(), std::move(children));
  for (std::size_t i = 0; i < launches.size(); ++i) {
    Result<ChildProcess>& child = started[i];
    if (child) {
      group->watch(std::move(launches[i]), std::move(*child));
    } else if (child.error().code != ErrorCode::kCancelled) {
      group->events_.worker_not_started(launches[i].local_rank, child.error());
    }
  }
}

void WorkerGroup::watch(Launch launch, ChildProcess child) {
  take_away_ended(launch.local_rank);
  auto worker = std::make_unique<Worker>(executor_);
  worker->local_rank = launch.local_rank;
  worker->child = std::move(child);
  error_code failed;
  worker->end.assign(::fcntl(worker->child.end_fd(), F_DUPFD_CLOEXEC, 0), failed);
  if (failed) {  // it must not run unwatched; ~ChildProcess ends it
    events_.worker_not_started(launch.local_rank,
                               system_error(failed.value(), "a descriptor to watch the worker"));
    return;
  }
  worker->has_input = static_cast<bool>(launch.in.second);
  if (worker->has_input) input_.attach(std::move(launch.in.second));
  Worker* raw = worker.get();
  workers_.push_back(std::move(worker));
  events_.worker_started(launch.local_rank, raw->child.pid());
  tasks_.start(watch_end(this, raw));
  pipes_.add(launch.local_rank, std::move(launch.out.first), std::move(launch.err.first));
  if (stopping_) end(*raw, signal_);
  if (!killing_) return;
  note_signal(*raw, SIGKILL);
  (void)raw->child.send_group_signal(SIGKILL);
}

bool WorkerGroup::all_ended() const {
  return !starting_ &&
         std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->ended; });
}

Awaitable<> WorkerGroup::watch_end(WorkerGroup* group, Worker* worker) {
  const error_code given_up = co_await until_readable(worker->end);
  worker->ended = true;
  if (given_up) {  // it survived SIGKILL; the sweep of the tree will name it
    group->pipes_.finish(worker->local_rank);
    if (worker->has_input) group->input_.detach();  // a write to it would block for ever
    worker->settled = true;
    co_return;
  }
  // Reap only when the whole group is done: until then, its number, and so its process group, stays valid for
  // signals.
  auto status = worker->child.peek();
  // A tracer (strace, gdb) is notified of the end before the parent.
  for (const auto until = Clock::now() + kTracerTime; !status && Clock::now() < until;) {
    co_await pause_for(group->executor_, kTracerPause);
    status = worker->child.peek();
  }
  if (worker->has_input) group->input_.detach();
  worker->status = status.value_or(ExitStatus{});
  group->events_.worker_exited(worker->local_rank, worker->child.pid(), worker->status);
  co_await group->pipes_.drained(worker->local_rank);
  worker->settled = true;
}

WorkerGroup::Worker* WorkerGroup::find(std::uint32_t local_rank) const {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [local_rank](const auto& worker) {
    return worker->local_rank == local_rank;
  });
  return found == workers_.end() ? nullptr : found->get();
}

/// Removes the ended worker of this local rank, because a new one replaces it.
void WorkerGroup::take_away_ended(std::uint32_t local_rank) {
  std::erase_if(replaced_, [](const auto& worker) { return worker->settled; });
  const auto old = std::find_if(workers_.begin(), workers_.end(),
                                [local_rank](const auto& w) { return w->local_rank == local_rank; });
  if (old == workers_.end()) return;
  (void)(*old)->child.try_wait();
  replaced_.push_back(std::move(*old));
  workers_.erase(old);
}

bool WorkerGroup::ended_after_stop(std::uint32_t local_rank) const {
  const Worker* worker = find(local_rank);
  if (worker == nullptr) return false;
  const bool by_kill = worker->status == ExitStatus::signaled(SIGKILL);
  return worker->killed || (worker->terminated && !by_kill);
}

bool WorkerGroup::ended_by_late_kill(std::uint32_t local_rank) const {
  const Worker* worker = find(local_rank);
  return worker != nullptr && worker->terminated && !ended_after_stop(local_rank);
}

/// Call it before the signal is sent. The worker may already be ending, and its peers may know it, although
/// it cannot be reaped yet: then our signal is not the cause.
void WorkerGroup::note_signal(Worker& worker, int signal) {
  if (!worker.child.running() || worker.child.peek()) return;
  if (const auto process = read_stat(worker.child.pid()); process && process->ending) return;
  (signal == SIGKILL ? worker.killed : worker.terminated) = true;
}

void WorkerGroup::terminate(std::uint32_t local_rank) {
  if (Worker* worker = find(local_rank)) end(*worker, SIGTERM);
}

void WorkerGroup::end(Worker& worker, int signal) {
  if (!worker.child.running()) return;
  note_signal(worker, signal);
  (void)(only_leaders_ ? worker.child.send_signal(signal) : worker.child.send_group_signal(signal));
  (void)worker.child.send_group_signal(SIGCONT);  // a stopped process would not see the signal
}

void WorkerGroup::kill(std::uint32_t local_rank) {
  Worker* worker = find(local_rank);
  if (worker == nullptr || !worker->child.running()) return;
  note_signal(*worker, SIGKILL);
  (void)worker->child.send_group_signal(SIGKILL);
}

Awaitable<> WorkerGroup::kill_leftovers(std::vector<std::uint32_t> local_ranks,
                                        std::chrono::milliseconds limit) {
  if (local_ranks.empty()) co_return;
  const auto until = Clock::now() + limit;
  for (const std::uint32_t local_rank : local_ranks)
    kill(local_rank);
  // Named variable: g++ 12 destroys a temporary twice if it lives across a co_await.
  std::vector<KnownProcess> orphans = co_await find_orphans(std::move(local_ranks), until);
  TreeKill tree(TreeScope{}, limit, std::move(orphans));
  while (!tree.step() && Clock::now() < until) {
    co_await pause_for(executor_, kSettlePause);
  }
}

/// The leaders of `local_ranks` and their orphans, which are re-parented to us as the subreaper. An orphan
/// belongs to its session's leader. If it made a session itself, its environment at exec shows its worker.
Awaitable<std::vector<KnownProcess>> WorkerGroup::find_orphans(std::vector<std::uint32_t> local_ranks,
                                                               Clock::time_point until) const {
  const auto chosen = [&local_ranks](std::int64_t local_rank) {
    return std::find(local_ranks.begin(), local_ranks.end(), local_rank) != local_ranks.end();
  };
  std::map<pid_t, bool> sessions;
  std::vector<KnownProcess> roots;
  std::vector<pid_t> unknown;
  // Only the loop reaps our children, so between two awaits a child keeps its number.
  const auto add_child = [&roots](pid_t pid) { roots.push_back({pid, open_process(pid)}); };
  for (const auto& worker : workers_) {
    sessions[worker->child.pid()] = chosen(worker->local_rank);
    if (chosen(worker->local_rank)) add_child(worker->child.pid());
  }
  visit_processes([&](ProcessInfo&& process) {
    if (process.parent != ::getpid() || process.state == 'Z' || sessions.contains(process.pid)) return;
    const auto session = sessions.find(::getsid(process.pid));
    if (session == sessions.end()) unknown.push_back(process.pid);
    if (session != sessions.end() && session->second) add_child(process.pid);
  });
  MarkSearch search(tree_.job_id, std::move(unknown));
  while (!search.is_over() && Clock::now() < until) {
    co_await pause_for(executor_, kSettlePause);
    for (MarkedProcess& orphan : search.take_found())
      if (chosen(orphan.local_rank)) roots.push_back({orphan.pid, std::move(orphan.fd)});
  }
  co_return roots;
}

Awaitable<> WorkerGroup::settled(std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  const auto all_settled = [this] {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return !worker->ended || worker->settled; });
  };
  pipes_.shorten_wait();
  while (!all_settled()) {
    co_await pause_for(executor_, kSettlePause);
    if (Clock::now() >= until) drop_ended();
  }
  pipes_.read_present();
}

void WorkerGroup::drop_ended() {
  for (const auto& worker : workers_)
    if (worker->ended && !worker->settled) pipes_.finish(worker->local_rank);
}

void WorkerGroup::stop(std::chrono::milliseconds grace, int signal) {
  const auto now = Clock::now();
  if (!stopping_) {
    stopping_ = true;
    signal_ = signal;
    kill_at_ = now + grace;
    if (signal != SIGTERM) terminate_at_ = now + grace * 4 / 5;
    if (starting_) pool_->cancel();
    pipes_.shorten_wait();
    for (const auto& worker : workers_)
      end(*worker, signal);
    tasks_.start(kill_later(this));
  } else if (!killing_ && now + grace < kill_at_) {
    kill_at_ = now + grace;
    timer_.cancel();
  }
}

Awaitable<> WorkerGroup::kill_later(WorkerGroup* group) {
  while (!group->all_ended() && Clock::now() < group->kill_at_) {
    auto& terminate_at = group->terminate_at_;
    if (terminate_at && Clock::now() >= *terminate_at) {
      terminate_at.reset();
      for (const auto& worker : group->workers_)
        group->end(*worker, SIGTERM);
    }
    group->timer_.expires_at(std::min(terminate_at.value_or(group->kill_at_), group->kill_at_));
    co_await group->timer_.async_wait(kUseTuple);
  }
  if (group->all_ended()) co_return;
  group->killing_ = true;
  group->kill_all();
  // SIGKILL does not end a process that the kernel blocks (a dead disk) or that changed its uid, so the wait
  // is bounded.
  const auto give_up = Clock::now() + kKillBound;
  group->timer_.expires_at(give_up);
  while (!group->all_ended() && Clock::now() < give_up)
    co_await group->timer_.async_wait(kUseTuple);
  error_code ignored;
  for (const auto& worker : group->workers_) {
    if (!worker->ended) worker->end.cancel(ignored);
  }
}

void WorkerGroup::kill_all() {
  for (const auto& worker : workers_)
    note_signal(*worker, SIGKILL);
  // First the tree, frozen before it is killed, so that no process forks away. The groups then catch
  // processes that were re-parented meanwhile.
  kill_own_tree(tree_, kKillTime);
  for (const auto& worker : workers_) {
    if (worker->child.running()) (void)worker->child.send_group_signal(SIGKILL);
  }
}

void WorkerGroup::signal_leaders(int number) {
  for (const auto& worker : workers_) {
    if (!worker->ended) (void)worker->child.send_signal(number);
  }
}

std::vector<pid_t> WorkerGroup::pids() const {
  std::vector<pid_t> pids;
  for (const auto& worker : workers_)
    pids.push_back(worker->child.pid());
  return pids;
}

void WorkerGroup::resume_output() {
  pipes_.resume();
}

Awaitable<> WorkerGroup::ended() {
  while (!all_ended())
    co_await tasks_.one_end();
  co_await pipes_.closed();
  timer_.cancel();
  while (tasks_.running()) {
    timer_.cancel();
    co_await tasks_.one_end();
  }
  for (const auto& worker : workers_)
    (void)worker->child.try_wait();
}

}  // namespace ddp::launcher
