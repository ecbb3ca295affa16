// The agent's attempts: the part of Agent that starts and ends workers, and hears them.
#include "launcher/agent/agent.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/crypto.h"
#include "base/files.h"
#include "base/text.h"
#include "launcher/agent/python_hook.h"
#include "launcher/inspection/worker_server.h"
#include "launcher/job/worker_env.h"
#include "launcher/keeper/cgroup.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/root_cause.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// The time to reap ended workers and read their output, even if their children hold the pipes.
constexpr std::chrono::milliseconds kSettleTime{1'000};
constexpr std::chrono::seconds kStepsEvery{1};
/// A disk that hangs costs this once, and heartbeats may be this much late. A thread of a busy machine may
/// not run for a while.
constexpr std::chrono::milliseconds kWorkerEndTime{500};
/// The master gets so much of a phase, which is a short text.
constexpr std::size_t kPhaseBytes = 64;
constexpr std::size_t kRanksPerMessage = 256;  ///< with phases of kMaxPhase they fit into kMaxAgentFrame
/// Text of one message: a longer one would delay the report of a worker's end.
constexpr std::size_t kPiece = rendezvous::kMaxAgentEvidence;
constexpr std::string_view kEnded = "the attempt has ended";

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
  const std::size_t needed = agent_files(workers);
  struct rlimit files {};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return {};
  return Error{ErrorCode::kSystem,
               counted(workers, "worker needs ", "workers need ") + std::to_string(needed) +
                   " open files on this node, but the hard limit is " + std::to_string(files.rlim_cur) +
                   "; raise it (ulimit -n " + std::to_string(needed) +
                   ", nofile in /etc/security/limits.conf, or LimitNOFILE= of the service)"};
}

std::string value_of(const std::vector<std::string>& env, const std::string& name) {
  const auto found = std::find_if(env.begin(), env.end(),
                                  [&](const std::string& entry) { return entry.starts_with(name + "="); });
  return found == env.end() ? "" : found->substr(name.size() + 1);
}

/// Returns the GPUs that the workers may use, as indices; empty: all of the node, or not known.
std::vector<std::uint32_t> gpus_of(const std::vector<WorkerSpec>& workers) {
  std::vector<std::uint32_t> all;
  for (const WorkerSpec& worker : workers) {
    const std::vector<std::uint32_t> own = device_numbers(value_of(worker.child.env, "CUDA_VISIBLE_DEVICES"));
    if (own.empty()) return {};
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

/// Returns the environment for a tool that needs the libraries of the workers, and is none of them.
std::vector<std::string> tool_env(std::vector<std::string> env) {
  std::erase_if(env, [](const std::string& entry) {
    return entry.starts_with("DDPLAUNCH_") || entry.starts_with("LOCAL_RANK=") ||
           entry.starts_with("LD_PRELOAD=");
  });
  return env;
}

/// A shell of this machine enters the directory and searches for the program, since the loop must not wait
/// for their disk.
ChildSpec child_of(const ChildSpec& worker, const std::vector<std::string>& argv, const TreeScope& tree) {
  ChildSpec child;
  child.path = "/bin/sh";
  child.argv = {"sh", "-c", "cd -- \"$0\" && exec \"$@\"", worker.cwd.empty() ? "." : worker.cwd};
  child.argv.insert(child.argv.end(), argv.begin(), argv.end());
  child.env = worker.env;
  // The hook of another Python program would take the worker's place at this socket.
  std::erase_if(child.env,
                [](const std::string& entry) { return entry.starts_with("DDPLAUNCH_DIAGNOSIS="); });
  if (tree.cgroup) {
    child.cgroup = tree.cgroup->directory();
    child.cgroup_procs = tree.cgroup->procs();
  }
  return child;
}

}  // namespace

// ---- the master's messages

void Agent::handle(const rendezvous::Signal& message) {
  if (core_.running() && group_) group_->signal_leaders(message.number);
}

void Agent::handle(const rendezvous::Credit& message) {
  credit_.add(message.stream, message.bytes);
  if (group_) group_->resume_output();
}

void Agent::handle(const rendezvous::Inspect& message) {
  if (!core_.running()) return;
  report_collectives();
  hang_monitor_.inspect(message);
}

// ---- an attempt begins

/// The end of an attempt ends every process of the job here, also the programs that --setup left running (a
/// data server, say). --setup runs once, so a later attempt must not miss them without a word.
void Agent::note_setup_helpers() {
  if (!runs_setup_) return;
  if (!group_) {  // nothing but --setup has started programs yet
    visit_processes([this](ProcessInfo&& process) {
      if (process.parent == ::getpid() && process.state != 'Z') setup_helpers_.push_back(std::move(process));
    });
    return;
  }
  std::string names;
  std::erase_if(setup_helpers_, [&names](const ProcessInfo& process) {
    if (!has_pid_ended(process.pid)) return false;
    names += (names.empty() ? "" : ", ") + process.comm + " (pid " + std::to_string(process.pid) + ")";
    return true;
  });
  if (!names.empty())
    link_.send(rendezvous::Notice{"setup: ended with the attempt before: " + names +
                                      "; --setup runs once, so start such programs with the workers",
                                  false});
}

void Agent::perform(const node::PrepareAttempt& action) {
  const rendezvous::Spawn& spawn = action.spawn;
  note_setup_helpers();
  const WorkerProcesses& survivors = core_.processes();
  new_steps_.clear();  // they are of the previous attempt
  step_timers_.clear();
  steps_timer_.cancel();
  if (auto board = collectives_.make_room(spawn.local_world_size); !board)
    link_.send(rendezvous::Notice{"desync analysis is not available: " + board.error().text, true});
  const std::vector<WorkerSockets> sockets = expect_workers(spawn.local_world_size);
  auto workers = job_->workers(spawn, static_cast<int>(options_.facts.cores), make_error_prefix(), sockets,
                               collectives_.path(), python_hook());
  const Result<> room = room_for_workers(spawn.local_world_size);
  if (!workers || !room) return feed(node::AttemptImpossible{workers ? room.error() : workers.error()});
  if (workers->omp_threads && spawn.node_rank == 0 && spawn.attempt == 0) {
    link_.send(
        rendezvous::Notice{"OMP_NUM_THREADS is set to " + std::to_string(*workers->omp_threads) +
                           " for each worker (its share of the node's cores); export it to choose another"});
  }
  evidence_.begin(spawn.attempt, spawn.first_rank, std::move(workers->error_files), survivors);
  if (survivors.none()) {
    group_ = std::make_unique<WorkerGroup>(loop_.get_executor(), *this, stdin_, tree_.begin(spawn.attempt));
    if (stop_leaders_) group_->stop_only_leaders();
    link_.send(rendezvous::Notice{tree_.how(), true});
  }
  prepared_ = std::move(workers->specs);
  queries_.begin(spawn.first_rank, prepared_, tree_.scope());
  if (!prepared_.empty()) {
    hang_monitor_.begin(spawn.attempt, spawn.world_size, prepared_.front().child.env);
    usage_.begin(tree_.scope().cgroup ? tree_.scope().cgroup->path() : "",
                 tool_env(prepared_.front().child.env), gpus_of(prepared_), options_.facts.hello.gpus > 0);
  }
  for (WorkerSpec& worker : prepared_)
    worker.child.tracer = ::getpid();  // gdb and py-spy will be our children
  for (const auto& [local, process] : survivors.all())
    hang_monitor_.worker_started(rank_of(local), inspected(local, process.pid));
  std::erase_if(prepared_, [&](const WorkerSpec& spec) { return survivors.is_alive(spec.local_rank); });
  // Before a worker hears of the attempt: with --store worker the surviving rank 0 opens the store at once.
  store_.workers_start();
  feed(node::AttemptPrepared{});
}

/// Makes sockets for the workers that will be started; survivors keep theirs.
std::vector<WorkerSockets> Agent::expect_workers(std::uint32_t count) {
  std::vector<WorkerSockets> sockets(count);
  if (!worker_listener_) {
    worker_listener_ = std::make_unique<WorkerListener>(loop_.get_executor(), *this);
    const char* base = std::getenv("TMPDIR");
    if (auto made = worker_listener_->open(base != nullptr ? base : ""); !made) {
      link_.send(rendezvous::Notice{
          "the workers get no DDPLAUNCH_CONTROL and DDPLAUNCH_METRICS: " + made.error().text, true});
      worker_listener_.reset();
      return {};
    }
    keeper_.set_directory(worker_listener_->directory());
  }
  for (std::uint32_t local = 0; local < count; ++local) {
    if (core_.processes().is_alive(local)) continue;
    if (auto made = worker_listener_->expect(local)) sockets[local] = std::move(*made);
  }
  return sockets;
}

/// Returns the directory of the hook for Python workers, or nothing if they get none.
std::string Agent::python_hook() {
  if (!worker_listener_ || !job_->wants_python_hook()) return {};
  const auto written = write_python_hook(worker_listener_->directory());
  if (written) return worker_listener_->directory();
  link_.send(rendezvous::Notice{"PyTorch's worker server is not available: " + written.error().text, true});
  return {};
}

InspectedWorker Agent::inspected(std::uint32_t local, pid_t pid) const {
  return {pid, worker_listener_ ? worker_listener_->server(local) : ""};
}

void Agent::perform(const node::OrderAttempt& action) {
  if (worker_listener_) worker_listener_->begin(action.local, action.order);
}

void Agent::perform(const node::StartWorkers&) {
  const bool first = core_.processes().none();
  group_->start(std::exchange(prepared_, {}));
  group_->resume_output();
  if (first) spawn(loop_.get_executor(), watch_workers());
}

// ---- a revoke

Awaitable<> Agent::kill_leftovers(std::vector<std::uint32_t> locals) {
  co_await group_->kill_leftovers(std::move(locals), kSettleTime);
  feed(node::LeftoversKilled{});
}

Awaitable<> Agent::read_output() {
  co_await group_->settled(kSettleTime);
  co_await stop_tools();
  feed(node::OutputRead{});
}

/// Tools must not count as leftovers of the workers.
Awaitable<> Agent::stop_tools() {
  hang_monitor_.stop();
  queries_.stop();
  usage_.stop();
  co_await hang_monitor_.idle();
  co_await queries_.idle();
  co_await usage_.idle();
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
  hang_monitor_.stop();
  queries_.stop();
  usage_.stop();
  if (worker_listener_) worker_listener_->stop(action.order);
  group_->resume_output();  // output from here on is part of the workers' last attempt
  group_->stop(grace, action.signal);
  evidence_.kills_from(WorkerGroup::Clock::now() + grace);
}

Awaitable<> Agent::watch_workers() {
  co_await group_->ended();
  feed(node::WorkersEnded{});
}

/// Processes that the workers left behind (daemons, loaders in their own sessions) end with the attempt.
Awaitable<> Agent::clean_up() {
  co_await revoke_tasks_.all_ends();
  co_await stop_tools();
  const std::vector<LeftProcess> left = co_await tree_.end();
  if (evidence_.any()) report_collectives();
  co_await collect_evidence();
  co_await evidence_.remove_files();
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

/// Reports the collectives of `train`. The master compares them and names the rank for which the others
/// wait.
void Agent::report_collectives() {
  const rendezvous::Spawn& attempt = core_.attempt();
  for (std::uint32_t local = 0; local < attempt.local_world_size; ++local) {
    std::string log = collectives_.text(local, rank_of(local), attempt.attempt);
    if (!log.empty())
      link_.send(rendezvous::WorkerCollectives{attempt.attempt, rank_of(local), std::move(log)});
  }
}

// ---- events of workers

void Agent::worker_started(std::uint32_t local, pid_t pid) {
  feed(node::WorkerStarted{local, static_cast<std::uint32_t>(pid), clock_ns()});
  if (worker_listener_) worker_listener_->started(local);
  evidence_.worker_started(pid);
  hang_monitor_.worker_started(rank_of(local), inspected(local, pid));
}

void Agent::worker_exited(std::uint32_t local, pid_t pid, const ExitStatus& status) {
  // What it said last decides what follows from its end.
  if (worker_listener_) worker_listener_->read_last_words(local);
  rendezvous::WorkerExited exited;
  exited.pid = static_cast<std::uint32_t>(pid);
  exited.clock_ns = clock_ns();
  switch (status.kind) {
    case ExitStatus::Kind::kExited: exited.code = static_cast<std::uint8_t>(status.number); break;
    case ExitStatus::Kind::kSignaled: exited.signal = static_cast<std::uint8_t>(status.number); break;
    case ExitStatus::Kind::kUnknown: exited.code = 255; break;
  }
  exited.core = status.core_dumped;
  exited.after_stop = group_->ended_after_stop(local);
  exited.late_kill = group_->ended_by_late_kill(local);
  if (core_.processes().killed(local) == nullptr) evidence_.worker_ended(rank_of(local), pid, status);
  hang_monitor_.worker_ended(rank_of(local));
  send_steps();
  const std::string end = take_worker_end(local, status);
  const std::string exception = end.substr(0, end.find('\n'));
  // PyTorch's watchdog aborts; exceptions are in the file.
  exited.gave_up = !end.empty() && (status.kind == ExitStatus::Kind::kSignaled || is_echo(exception));
  const bool gave_up = exited.gave_up;
  // The master forgets what it knew of collectives when it hears of the end.
  feed(node::WorkerExited{local, std::move(exited)});
  if (gave_up) report_last_collectives(local, end.substr(std::min(end.size(), exception.size() + 1)));
  if (worker_listener_) worker_listener_->forget(local);
}

/// Returns and removes what the hook has left of a worker that failed: lines with the exception and PyTorch's
/// record, and the frames in which it was raised; a line feed alone for an abort of a worker with a server.
/// Empty: nothing is known. It must be known before the end is reported, and the file is on a disk of this
/// machine, which may hang.
std::string Agent::take_worker_end(std::uint32_t local, const ExitStatus& status) {
  const bool aborted = status.kind == ExitStatus::Kind::kSignaled && status.number == SIGABRT;
  const bool failed = status.kind == ExitStatus::Kind::kExited && status.number != 0;
  const std::string server = inspected(local, 0).server;
  if (server.empty() || !(aborted || failed) || directory_hangs_) return {};
  const std::function<std::string()> read = [server, aborted]() -> std::string {
    if (::access(server.c_str(), F_OK) != 0) return {};  // the hook has made no server
    const std::string path = server + std::string(kWorkerEndFile);
    std::string text = read_start(path, kRecordBytes);
    ::unlink(path.c_str());
    return text.empty() && aborted ? "\n" : text;
  };
  const auto end = run_briefly(read, kWorkerEndTime);
  directory_hangs_ = !end;
  return end.value_or("");
}

/// `end`: PyTorch's JSON in one line, and frames.
void Agent::report_last_collectives(std::uint32_t local, const std::string& end) {
  if (end.empty()) return;
  rendezvous::TorchAnswers answers;
  const std::size_t line = std::min(end.find('\n'), end.size());
  answers.record = end.substr(0, line);
  answers.stacks = end.substr(line);
  answers.gave_up = true;
  rendezvous::FlightRecorderDump dump;
  dump.rank = static_cast<int>(rank_of(local));
  dump.world_size = static_cast<int>(core_.attempt().world_size);
  dump.attempt = core_.attempt().attempt;
  dump.taken = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto read = read_torch_answers(answers, dump, rendezvous::kFinishedReported, rendezvous::kReported);
  if (read && !read->groups.empty())
    link_.send(rendezvous::WorkerCollectives{dump.attempt, rank_of(local), dump_text(*read)});
}

void Agent::worker_not_started(std::uint32_t local, const Error& error) {
  rendezvous::WorkerExited exited;
  exited.code = static_cast<std::uint8_t>(exec_exit_code(error.sys));
  exited.sys = error.sys;
  exited.clock_ns = clock_ns();
  exited.text = error.text;
  feed(node::WorkerExited{local, std::move(exited)});
}

void Agent::all_started() {
  feed(node::WorkersStarted{});
  stdin_.resume();
}

// ---- messages from workers

void Agent::worker_said(std::uint32_t local, const rendezvous::WorkerHello& hello) {
  feed(node::WorkerGreeted{local, hello.rejoin && !hello.sharded});
}

void Agent::worker_unlinked(std::uint32_t local) {
  hang_monitor_.worker_steps_no_more(rank_of(local));
  feed(node::WorkerGreeted{local, false});
}

void Agent::worker_said(std::uint32_t local, const rendezvous::WorkerStep& step) {
  hang_monitor_.worker_stepped(rank_of(local), step.step, step.phase);
  worker_reported(local, step);
}

void Agent::worker_reported(std::uint32_t local, const rendezvous::WorkerStep& step) {
  if (new_steps_.empty()) {
    steps_timer_.expires_after(kStepsEvery);
    steps_timer_.async_wait([this](const error_code& cancelled) {
      if (!cancelled) send_steps();
    });
  }
  // A worker that reports seldom measures its steps itself. Others report when a step ends.
  StepTimer& timer = step_timers_[rank_of(local)];
  if (step.durations) {
    timer.forget();
    timer.add(*step.durations);
  } else {
    timer.at(step.step, std::chrono::steady_clock::now().time_since_epoch());
  }
  rendezvous::WorkerStep& kept = new_steps_[rank_of(local)];
  kept.step = step.step;
  kept.phase = step.phase.substr(0, kPhaseBytes);
  kept.loss = step.loss;
}

void Agent::send_steps() {
  if (new_steps_.empty()) return;
  steps_timer_.cancel();
  rendezvous::WorkerSteps message{core_.attempt().attempt, {}, {}, {}, {}, {}, {}, {}, {}};
  StepDurations durations;
  const auto send = [&] {
    for (const auto& [bucket, steps] : durations.counts)
      message.durations.insert(message.durations.end(), {bucket, steps});
    link_.send(message);
    message = {message.attempt, {}, {}, {}, {}, {}, {}, {}, {}};
    durations = {};
  };
  for (const auto& [rank, report] : std::exchange(new_steps_, {})) {
    const StepDurations measured = step_timers_[rank].take();
    durations.add(measured);
    message.counts.push_back(measured.steps());
    message.seconds.push_back(std::bit_cast<std::uint64_t>(measured.seconds));
    message.waits.push_back(std::bit_cast<std::uint64_t>(measured.waited));
    message.ranks.push_back(rank);
    message.steps.push_back(report.step);
    message.phases.push_back(report.phase);
    message.losses.push_back(std::bit_cast<std::uint64_t>(report.loss.value_or(std::nan(""))));
    if (message.ranks.size() >= kRanksPerMessage) send();
  }
  if (!message.ranks.empty()) send();
}

void Agent::worker_said(std::uint32_t local, const rendezvous::WorkerTrouble& trouble) {
  feed(node::WorkerTroubled{local, trouble});
}

void Agent::worker_said(std::uint32_t local, const rendezvous::WorkerRevoked& answer) {
  feed(node::WorkerLeft{local, answer});
}

void Agent::worker_said(std::uint32_t local, const rendezvous::WorkerMisbehaved& misbehavior) {
  link_.send(rendezvous::Notice{"rank " + std::to_string(rank_of(local)) + ": " + misbehavior.words});
}

// ---- output

std::size_t Agent::output_room(std::uint8_t stream) const {
  return core_.holds_output() ? 0 : credit_.room(stream);
}

void Agent::worker_output(std::uint32_t local, std::uint8_t stream, std::span<const char> bytes) {
  credit_.spend(stream, bytes.size());
  hang_monitor_.worker_wrote();
  link_.send_output({core_.attempt().attempt, rank_of(local), stream, clock_ns(),
                     std::string_view(bytes.data(), bytes.size())});
}

// ---- queries

void NodeQueries::begin(std::uint32_t first_rank, const std::vector<WorkerSpec>& workers, TreeScope tree) {
  workers_.clear();
  for (const WorkerSpec& worker : workers)
    workers_[first_rank + worker.local_rank] = worker.child;
  tree_ = std::move(tree);
  stopped_ = false;
}

void NodeQueries::start(const rendezvous::Query& query, Leaders leaders) {
  std::erase_if(leaders, [&](const auto& leader) {
    return std::find(query.ranks.begin(), query.ranks.end(), leader.first) == query.ranks.end();
  });
  if (stopped_) return refuse(query.request, std::string(kEnded));
  if (leaders.empty() && query.ranks.size() == 1)
    return refuse(query.request, "rank " + std::to_string(query.ranks.front()) + " has ended");
  if (leaders.empty()) return refuse(query.request, "its workers have ended");
  if (running_.contains(query.request) || running_.size() >= kMostQueries)
    return refuse(query.request, "its node answers " + std::to_string(running_.size()) + " other requests");
  RunningQuery& running = running_[query.request];
  if (!query.argv.empty()) return tasks_.start(run_command(this, query));
  ProcessInspection::Options options;
  options.leaders = std::move(leaders);
  const std::vector<std::string>& env = workers_[options.leaders.begin()->first].env;
  options.worker_path = value_of(env, "PATH");
  options.ras_address = value_of(env, "NCCL_RAS_ADDR");
  options.deadline = Clock::now() + std::chrono::milliseconds(query.timeout_ms);
  running.inspection = std::make_unique<ProcessInspection>(
      executor_, std::move(options), [this, request = query.request](const rendezvous::Inspection& found) {
        if (!found.text.empty()) answer(request, found.rank, found.text);
      });
  tasks_.start(run_inspection(this, query.request));
}

Awaitable<> NodeQueries::run_inspection(NodeQueries* self, std::uint32_t request) {
  RunningQuery& running = self->running_.at(request);
  co_await running.inspection->run();
  rendezvous::QueryAnswer last{request, 0, {}, true, 0, {}};
  if (running.stop.stopped) last.trouble = kEnded;
  self->running_.erase(request);
  self->send_(last);
}

Awaitable<> NodeQueries::run_command(NodeQueries* self, rendezvous::Query query) {
  RunningQuery& running = self->running_.at(query.request);
  const std::uint32_t rank = query.ranks.front();
  const auto deadline = Clock::now() + std::chrono::milliseconds(query.timeout_ms);
  ChildSpec child = child_of(self->workers_[rank], query.argv, self->tree_);
  ToolOutput output =
      co_await run_tool(std::move(child), deadline, kCommandText, &running.pids, &running.stop);
  for (std::size_t at = 0; at < output.text.size(); at += kPiece)
    self->answer(query.request, rank, output.text.substr(at, kPiece));
  rendezvous::QueryAnswer last{query.request, rank, {}, true, 0, {}};
  if (!output.status)
    last.trouble = running.stop.stopped ? std::string(kEnded) : output.trouble();
  else if (output.status->kind == ExitStatus::Kind::kSignaled)
    last.code = 128 + output.status->number;
  else
    last.code = output.status->number;
  self->running_.erase(query.request);
  self->send_(last);
}

void NodeQueries::answer(std::uint32_t request, std::uint32_t rank, std::string text) {
  send_({request, rank, std::move(text), false, 0, {}});
}

void NodeQueries::refuse(std::uint32_t request, std::string trouble) {
  send_({request, 0, {}, true, 0, std::move(trouble)});
}

void NodeQueries::end(RunningQuery& running) {
  running.stop.stop();
  if (running.inspection) running.inspection->cancel();
}

void NodeQueries::cancel(std::uint32_t request) {
  if (const auto found = running_.find(request); found != running_.end()) end(found->second);
}

void NodeQueries::stop() {
  stopped_ = true;
  for (auto& [request, running] : running_)
    end(running);
}

std::vector<pid_t> NodeQueries::pids() const {
  std::vector<pid_t> pids;
  for (const auto& [request, running] : running_) {
    const std::set<pid_t>& of_one = running.inspection ? running.inspection->pids() : running.pids;
    pids.insert(pids.end(), of_one.begin(), of_one.end());
  }
  return pids;
}

}  // namespace ddp::launcher
