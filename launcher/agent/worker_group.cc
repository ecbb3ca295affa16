#include "launcher/worker_group.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <exception>
#include <utility>

#include "base/readable.h"
#include "launcher/cgroup.h"
#include "launcher/process_look.h"
#include "launcher/process_table.h"

namespace ddp::launcher {
namespace {

/// For the blocking kill: every process has its SIGKILL by then; waiting for their ends is the loop's
/// business.
constexpr std::chrono::milliseconds kKillTime{50};
/// For a worker's tracer to take note of its end, and between two looks whether it has.
constexpr std::chrono::seconds kTracerTime{2};
constexpr std::chrono::milliseconds kTracerPause{2};
/// Between two looks whether the output of the dead is read.
constexpr std::chrono::milliseconds kSettlePause{1};
/// Workers from which on they are started by several threads, and how many at a time.
constexpr std::size_t kPoolFrom = 6;
constexpr std::size_t kBatch = 64;

Result<std::pair<UniqueFd, UniqueFd>> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return system_error(errno, "a pipe for a worker");
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

}  // namespace

struct WorkerGroup::Worker {
  explicit Worker(asio::any_io_executor executor) : end(executor), input(executor) {}
  std::uint32_t rank = 0;
  ChildProcess child;
  asio::posix::stream_descriptor end;  ///< a copy of the pidfd for the loop
  asio::posix::stream_descriptor input;
  bool ended = false;
  bool settled = false;  ///< and its output is read
};

WorkerGroup::WorkerGroup(asio::any_io_executor executor, WorkerEvents& events, TreeScope tree)
    : executor_(executor),
      events_(events),
      tree_(std::move(tree)),
      pipes_(executor, events),
      kill_at_(executor, Clock::time_point::max()),
      task_done_(executor, Clock::time_point::max()) {}

WorkerGroup::~WorkerGroup() = default;

/// A worker between its pipes and its start.
struct WorkerGroup::Launch {
  std::uint32_t rank = 0;
  ChildSpec child;
  std::pair<UniqueFd, UniqueFd> in;  ///< only for who wants stdin
  std::pair<UniqueFd, UniqueFd> out;
  std::pair<UniqueFd, UniqueFd> err;
};

Result<WorkerGroup::Launch> WorkerGroup::prepare(WorkerSpec spec) {
  Launch launch;
  launch.rank = spec.rank;
  auto out = make_pipe();
  auto err = make_pipe();
  if (!out || !err) return out ? err.error() : out.error();
  launch.out = std::move(*out);
  launch.err = std::move(*err);
  if (spec.wants_stdin) {
    auto in = make_pipe();
    if (!in) return in.error();
    launch.in = std::move(*in);
  }
  ChildSpec& child = launch.child;
  child.path = std::move(spec.path);
  child.argv = std::move(spec.argv);
  child.env = std::move(spec.env);
  child.cwd = std::move(spec.cwd);
  child.in = spec.wants_stdin ? launch.in.first.get() : kDevNull;
  child.out = launch.out.second.get();
  child.err = launch.err.second.get();
  child.death_signal = SIGKILL;
  child.tracer = spec.tracer;
  return launch;
}

void WorkerGroup::start(std::vector<WorkerSpec> specs) {
  pipes_.take_time();
  if (!pool_) pool_ = std::make_unique<SpawnPool>(specs.size() >= kPoolFrom ? spawn_threads() : 0);
  // In batches, since each child is given a copy of our table of descriptors: the fewer are open, the faster.
  for (std::size_t begin = 0; begin < specs.size(); begin += kBatch) {
    std::vector<Launch> launches;
    std::vector<ChildSpec> children;
    for (std::size_t i = begin; i < std::min(begin + kBatch, specs.size()); ++i) {
      const std::uint32_t rank = specs[i].rank;
      auto launch = prepare(std::move(specs[i]));
      if (!launch) {
        events_.worker_not_started(rank, launch.error());
        continue;
      }
      if (tree_.cgroup) {
        launch->child.cgroup = tree_.cgroup->directory();
        launch->child.cgroup_procs = tree_.cgroup->procs();
      }
      children.push_back(std::move(launch->child));
      launches.push_back(std::move(*launch));
    }
    std::vector<Result<ChildProcess>> started = pool_->spawn_all(children);
    for (std::size_t i = 0; i < launches.size(); ++i) {
      if (started[i]) {
        watch(std::move(launches[i]), std::move(*started[i]));
      } else {
        events_.worker_not_started(launches[i].rank, started[i].error());
      }
    }
  }
}

void WorkerGroup::watch(Launch launch, ChildProcess child) {
  take_away_ended(launch.rank);
  auto worker = std::make_unique<Worker>(executor_);
  worker->rank = launch.rank;
  worker->child = std::move(child);
  error_code failed;
  worker->end.assign(::fcntl(worker->child.pidfd(), F_DUPFD_CLOEXEC, 0), failed);
  if (failed) {  // unwatched it must not run; ~ChildProcess ends it
    events_.worker_not_started(launch.rank, system_error(failed.value(), "a descriptor to watch the worker"));
    return;
  }
  if (launch.in.second) worker->input.assign(launch.in.second.release());
  Worker* raw = worker.get();
  workers_.push_back(std::move(worker));
  events_.worker_started(launch.rank, raw->child.pid());
  spawn_task(watch_end(this, raw));
  pipes_.add(launch.rank, std::move(launch.out.first), std::move(launch.err.first));
}

void WorkerGroup::spawn_task(Awaitable<> task) {
  ++tasks_;
  asio::co_spawn(executor_, std::move(task), [this](const std::exception_ptr& broken) {
    if (broken) std::terminate();  // no exception crosses an await here: this is a mistake of ours
    --tasks_;
    task_done_.cancel();
  });
}

Awaitable<> WorkerGroup::watch_end(WorkerGroup* group, Worker* worker) {
  const error_code given_up = co_await until_readable(worker->end);
  worker->ended = true;
  error_code ignored;
  if (given_up) {  // it outlived its SIGKILL; the sweep of the tree will name it
    group->pipes_.give_up(worker->rank);
    worker->input.close(ignored);  // a write to it would wait for ever
    worker->settled = true;
    co_return;
  }
  // Not reaped before the whole group is done: until then its number, and so its process group, stays ours to
  // signal.
  auto status = worker->child.peek();
  // A tracer (strace, gdb) is told of the end before its parent is.
  asio::steady_timer pause(group->executor_);
  for (const auto until = Clock::now() + kTracerTime; !status && Clock::now() < until;) {
    pause.expires_after(kTracerPause);
    co_await pause.async_wait(kUseTuple);
    status = worker->child.peek();
  }
  group->events_.worker_exited(worker->rank, worker->child.pid(), status.value_or(ExitStatus{}));
  worker->input.close(ignored);
  co_await group->pipes_.drained(worker->rank);
  worker->settled = true;
}

WorkerGroup::Worker* WorkerGroup::find(std::uint32_t rank) const {
  const auto found = std::find_if(workers_.begin(), workers_.end(),
                                  [rank](const auto& worker) { return worker->rank == rank; });
  return found == workers_.end() ? nullptr : found->get();
}

/// Another one takes its place.
void WorkerGroup::take_away_ended(std::uint32_t rank) {
  std::erase_if(replaced_, [](const auto& worker) { return worker->settled; });
  const auto old =
      std::find_if(workers_.begin(), workers_.end(), [rank](const auto& w) { return w->rank == rank; });
  if (old == workers_.end()) return;
  (void)(*old)->child.try_wait();
  replaced_.push_back(std::move(*old));
  workers_.erase(old);
}

bool WorkerGroup::lives(std::uint32_t rank) const {
  const Worker* worker = find(rank);
  return worker != nullptr && !worker->ended;
}

bool WorkerGroup::any_lives() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) { return !worker->ended; });
}

std::vector<std::uint32_t> WorkerGroup::ended_ranks() const {
  std::vector<std::uint32_t> ranks;
  for (const auto& worker : workers_)
    if (worker->ended) ranks.push_back(worker->rank);
  return ranks;
}

void WorkerGroup::terminate(std::uint32_t rank) {
  Worker* worker = find(rank);
  if (worker == nullptr || !worker->child.running()) return;
  (void)worker->child.send_group_signal(SIGTERM);
  (void)worker->child.send_group_signal(SIGCONT);  // a stopped process would not see it
}

void WorkerGroup::kill(std::uint32_t rank) {
  Worker* worker = find(rank);
  if (worker == nullptr) return;
  if (worker->child.running()) (void)worker->child.send_group_signal(SIGKILL);
  kill_adopted(rank);
}

/// Orphans come to us as the subreaper; whose they were is told by what they were executed with.
void WorkerGroup::kill_adopted(std::uint32_t rank) const {
  const std::string mark = "LOCAL_RANK=" + std::to_string(rank);
  const std::string job = "DDPLAUNCH_JOB_ID=" + tree_.job_id;
  std::vector<pid_t> leaders = pids();
  visit_processes([&](ProcessInfo&& info) {
    if (info.parent != ::getpid() || info.state == 'Z') return;
    if (std::find(leaders.begin(), leaders.end(), info.pid) != leaders.end()) return;
    const std::string environment = process_environment(info.pid);
    if (!has_entry(environment, mark) || !has_entry(environment, job)) return;
    // Its number is not used again before we have reaped it.
    for (const ProcessInfo& below : ProcessForest().tree(info.pid))
      ::kill(below.pid, SIGKILL);
  });
}

Awaitable<> WorkerGroup::settled(std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  const auto all_settled = [this] {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return !worker->ended || worker->settled; });
  };
  pipes_.hurry();
  asio::steady_timer pause(executor_);
  while (!all_settled()) {
    pause.expires_after(kSettlePause);
    co_await pause.async_wait(kUseTuple);
    if (Clock::now() < until) continue;
    for (const auto& worker : workers_)
      if (worker->ended && !worker->settled) pipes_.give_up(worker->rank);
  }
  pipes_.read_present();
}

void WorkerGroup::let_go_of_ended() {
  for (const auto& worker : workers_)
    if (worker->ended && !worker->settled) pipes_.finish(worker->rank);
}

void WorkerGroup::stop(std::chrono::milliseconds grace) {
  const auto at = Clock::now() + grace;
  if (!stopping_) {
    stopping_ = true;
    pipes_.hurry();
    for (const auto& worker : workers_) {
      if (worker->child.running()) (void)worker->child.send_group_signal(SIGTERM);
      // A stopped process would not see its TERM.
      if (worker->child.running()) (void)worker->child.send_group_signal(SIGCONT);
    }
    kill_at_.expires_at(at);
    spawn_task(kill_later(this));
  } else if (!killing_ && at < kill_at_.expiry()) {
    kill_at_.expires_at(at);  // wakes kill_later, which looks at the new time
  }
}

Awaitable<> WorkerGroup::kill_later(WorkerGroup* group) {
  const auto all_ended = [group] {
    return std::all_of(group->workers_.begin(), group->workers_.end(),
                       [](const auto& w) { return w->ended; });
  };
  while (!all_ended()) {
    if (Clock::now() >= group->kill_at_.expiry()) break;
    co_await group->kill_at_.async_wait(kUseTuple);
  }
  if (all_ended()) co_return;
  group->killing_ = true;
  group->kill_all();
  // What the kernel holds (a dead disk), or what changed its uid, does not die of it: it is not waited for
  // for ever.
  const auto give_up = Clock::now() + kKillBound;
  group->kill_at_.expires_at(give_up);
  while (!all_ended() && Clock::now() < give_up)
    co_await group->kill_at_.async_wait(kUseTuple);
  error_code ignored;
  for (const auto& worker : group->workers_) {
    if (!worker->ended) worker->end.cancel(ignored);
  }
}

void WorkerGroup::kill_all() {
  // The tree first, frozen before it is killed, so that nothing forks away; the groups catch what reparented
  // meanwhile.
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

Awaitable<> WorkerGroup::write_stdin(std::string bytes) {
  for (const auto& worker : workers_) {
    if (!worker->input.is_open()) continue;
    error_code ignored;
    if (bytes.empty()) {
      worker->input.close(ignored);
      co_return;
    }
    asio::posix::stream_descriptor& input = worker->input;
    const auto [error, count] = co_await asio::async_write(input, asio::buffer(bytes), kUseTuple);
    if (error) input.close(ignored);  // the worker does not read any more: its business
    co_return;
  }
}

Awaitable<> WorkerGroup::ended() {
  const auto all_ended = [this] {
    return std::all_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->ended; });
  };
  while (!all_ended())
    co_await task_done_.async_wait(kUseTuple);
  co_await pipes_.closed();
  kill_at_.cancel();
  while (tasks_ > 0) {
    kill_at_.cancel();
    co_await task_done_.async_wait(kUseTuple);
  }
  for (const auto& worker : workers_)
    (void)worker->child.try_wait();
}

}  // namespace ddp::launcher
