#include "launcher/inspection/hang_monitor.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/text.h"
#include "launcher/inspection/process_inspection.h"
#include "launcher/inspection/worker_server.h"
#include "launcher/keeper/process_table.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// The time from the end of an inspection to the master's decision.
constexpr std::chrono::seconds kVerdictTime{3};

/// An answer costs the worker CPU time, which must not look like its work.
constexpr std::chrono::seconds kShortestBetweenQueries{5};
constexpr std::chrono::seconds kLongestBetweenQueries{60};
/// The time of a server to answer a query. Without an answer a rank does not count as waiting.
constexpr std::chrono::seconds kQueryTime{2};
/// Unfinished operations of a group that are compared between two queries.
constexpr std::size_t kOperations = 8;

/// Bytes that a process has read and written: proc(5), /proc/PID/io. The sum counts a byte of a file twice
/// where it was not in memory.
std::optional<std::uint64_t> read_io(pid_t pid) {
  const std::string text = read_start("/proc/" + std::to_string(pid) + "/io", 1024);
  const std::vector<std::string_view> words = split_at_blanks(text);
  std::optional<std::uint64_t> sum;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    const std::string_view name = words[i];
    if (name != "rchar:" && name != "wchar:" && name != "read_bytes:" && name != "write_bytes:") continue;
    if (const auto number = parse_number<std::uint64_t>(words[i + 1])) sum = sum.value_or(0) + *number;
  }
  return sum;
}

/// The state of a rank's collectives as text, which changes with each one that starts or ends.
std::string state_text(const rendezvous::FlightRecorderDump& dump) {
  std::string text;
  for (const rendezvous::RecordedGroup& group : dump.groups) {
    text += group.name + ":";
    for (const rendezvous::RecordedCollective& entry : group.entries)
      text += " " + std::to_string(entry.sequence) + (entry.finished == 0 ? "?" : "");
    text += "\n";
  }
  return text;
}

/// Returns whether an operation has been unfinished for `time`.
bool waits_for(const rendezvous::FlightRecorderDump& dump, nanoseconds time) {
  for (const rendezvous::RecordedGroup& group : dump.groups)
    for (const rendezvous::RecordedCollective& entry : group.entries)
      if (entry.finished == 0 && entry.started > 0 && dump.taken - entry.started >= time.count()) return true;
  return false;
}

ProcessTime process_time(const ProcessStat& info, bool leader) {
  static const long kTicks = ::sysconf(_SC_CLK_TCK);
  ProcessTime time;
  time.pid = info.pid;
  time.started = info.started;
  time.cpu = nanoseconds(info.cpu * (1'000'000'000 / static_cast<std::uint64_t>(kTicks)));
  time.traced = info.state == 't';
  time.leader = leader;
  return time;
}

std::string value_of(const std::vector<std::string>& env, std::string_view name) {
  for (const std::string& entry : env) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  }
  return {};
}

}  // namespace

HangMonitor::HangMonitor(asio::any_io_executor executor, SendMessage send, IsOutputPaused is_output_paused)
    : executor_(executor),
      send_(std::move(send)),
      output_paused_(std::move(is_output_paused)),
      tracker_(timeout_, steady_now()),
      timer_(executor),
      tasks_(executor) {}

HangMonitor::~HangMonitor() = default;

void HangMonitor::begin(std::uint32_t attempt, std::uint32_t world_size,
                        const std::vector<std::string>& env) {
  leaders_.clear();
  steps_.clear();
  known_.clear();
  recorder_states_.clear();
  waiting_.clear();
  doubts_.clear();
  last_word_ = last_query_ = steady_now();
  servers_ = std::make_unique<BlockingCalls>(executor_, kServersAtOnce);
  stopped_ = false;
  attempt_ = attempt;
  world_size_ = world_size;
  tracker_ = ActivityTracker(timeout_, steady_now());
  worker_path_ = value_of(env, "PATH");
  ras_address_ = value_of(env, "NCCL_RAS_ADDR");
  resume_at_ = nanoseconds(0);
  if (timeout_.count() > 0) tasks_.start(watch_workers(this));
}

void HangMonitor::worker_wrote() {
  if (stopped_) return;
  last_word_ = steady_now();
  tracker_.record_activity(last_word_);
}

void HangMonitor::worker_stepped(std::uint32_t rank, std::uint64_t step, const std::string& phase) {
  if (leaders_.count(rank) == 0) return;
  steps_[rank] = ReportedStep{step, phase};
  last_word_ = steady_now();
  tracker_.record_activity(last_word_);
}

Awaitable<> HangMonitor::watch_workers(HangMonitor* self) {
  while (!self->stopped_) {
    self->timer_.expires_after(ActivityTracker::period(self->timeout_));
    co_await self->timer_.async_wait(kUseTuple);
    if (self->stopped_ || steady_now() < self->resume_at_ || self->leaders_.empty()) continue;
    self->sample();
    if (self->is_query_due()) self->tasks_.start(query_collectives(self));
  }
}

/// A job that prints or reports steps is never queried.
bool HangMonitor::is_query_due() const {
  const nanoseconds now = steady_now();
  const nanoseconds quarter = timeout_ / 4;
  return !querying_ && !all_step() && now - last_word_ >= quarter &&
         now - last_query_ >=
             std::clamp<nanoseconds>(quarter, kShortestBetweenQueries, kLongestBetweenQueries);
}

Awaitable<> HangMonitor::query_collectives(HangMonitor* self) {
  const std::uint32_t attempt = self->attempt_;
  self->querying_ = true;
  co_await query_ranks(self, self->leaders_);
  self->last_query_ = steady_now();
  self->querying_ = false;
  if (!self->stopped_ && self->attempt_ == attempt) self->send_change();
}

Awaitable<> HangMonitor::query_ranks(HangMonitor* self, InspectedWorkers ranks) {
  TaskGroup asked(self->executor_);
  for (const auto& [rank, worker] : ranks)
    if (!worker.server.empty()) asked.start(query_rank(self, rank, worker.server));
  co_await asked.all_ends();
}

/// A rank that waits in a collective may spin there, or sleep. A collective that starts or ends is progress.
Awaitable<> HangMonitor::query_rank(HangMonitor* self, std::uint32_t rank, std::string server) {
  const std::uint32_t attempt = self->attempt_;
  const nanoseconds began = steady_now();
  const auto until = ProcessInspection::Clock::now() + kQueryTime;
  rendezvous::FlightRecorderDump dump;
  dump.rank = static_cast<int>(rank);
  dump.world_size = static_cast<int>(self->world_size_);
  dump.taken = nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  std::function<Result<rendezvous::FlightRecorderDump>()> ask = [path = std::move(server), dump, until] {
    const auto read =
        read_torch_answers(ask_worker_server(path, ServerQuestion::kRecord, until), dump, 1, kOperations);
    return Result<rendezvous::FlightRecorderDump>(read.value_or(rendezvous::FlightRecorderDump()));
  };
  const auto answer = co_await self->servers_->run(std::move(ask), until);
  if (self->stopped_ || self->attempt_ != attempt || !self->leaders_.contains(rank)) co_return;
  if (answer && !answer->groups.empty()) {
    std::string state = state_text(*answer);
    const auto last = self->recorder_states_.find(rank);
    if (last != self->recorder_states_.end() && last->second != state)
      self->tracker_.record_activity(steady_now());
    self->recorder_states_[rank] = std::move(state);
  }
  const bool waits = answer && waits_for(*answer, self->timeout_ / 4);
  self->waiting_.erase(rank);
  if (waits) self->waiting_.insert(rank);
  const auto doubt = self->doubts_.find(rank);
  if (doubt == self->doubts_.end() || (waits && doubt->second > began)) co_return;
  if (!waits) self->tracker_.record_activity(doubt->second);
  self->doubts_.erase(doubt);
}

void HangMonitor::sample() {
  tracker_.begin_sample(steady_now());
  // Workers that wait for credit cannot go on, which is the reader's doing and no hang. Otherwise the
  // cheapest proof of activity comes first: steps that ranks report, a few processes, all known ones, and
  // only then all of /proc.
  if (output_paused_())
    tracker_.record_activity(steady_now());
  else if (!all_step() && !sample_some() && !sample_processes(known_, false, true) &&
           tracker_.whole_due(steady_now()))
    sample_trees();
  report_changes();
}

/// Returns whether the workers were active since the last sample, including processes that were unknown until
/// then.
bool HangMonitor::sees_work() {
  if (output_paused_()) return true;
  return !all_step() && (sample_some() || sample_processes(known_, false, true) || sample_trees());
}

/// A query ends with send_change.
void HangMonitor::report_changes() {
  if (doubts_.empty() || !tracker_.turns_quiet(steady_now())) return send_change();
  if (!querying_) tasks_.start(query_collectives(this));
}

void HangMonitor::send_change() {
  const auto change = tracker_.poll_change(steady_now());
  if (!change) return;
  send_(rendezvous::Quiet{attempt_, change->quiet, static_cast<std::uint64_t>(change->since.count()),
                          all_step()});
}

/// Reads a few files, which suffices while the job works.
bool HangMonitor::sample_some() {
  RanksOfProcesses some;
  for (const pid_t pid : tracker_.pacemakers())
    if (const auto known = known_.find(pid); known != known_.end()) some.insert(*known);
  return sample_processes(some, false, false);
}

bool HangMonitor::sample_processes(const RanksOfProcesses& processes, bool whole, bool files) {
  std::vector<ProcessTime> times;
  const auto add = [&](pid_t pid, std::uint32_t rank, bool leader) {
    const auto info = read_stat(pid);
    if (!info) return;
    times.push_back(process_time(*info, leader));
    times.back().waits = waiting_.contains(rank);
    if (files) times.back().io = read_io(pid);
  };
  for (const auto& [pid, rank] : processes)
    add(pid, rank, false);
  for (const auto& [rank, leader] : leaders_)
    add(leader.pid, rank, true);
  const bool active = tracker_.add_sample(times, whole, steady_now());
  for (const pid_t pid : tracker_.in_doubt()) {
    const auto child = processes.find(pid);
    const auto leader = std::ranges::find(leaders_, pid, [](const auto& entry) { return entry.second.pid; });
    if (child != processes.end())
      doubts_[child->second] = steady_now();
    else if (leader != leaders_.end())
      doubts_[leader->first] = steady_now();
  }
  return active;
}

bool HangMonitor::sample_trees() {
  const ProcessForest forest;
  known_.clear();
  for (const auto& [rank, leader] : leaders_) {
    for (const ProcessInfo& info : forest.tree(leader.pid)) {
      // Leaders are sampled in any case.
      if (info.pid != leader.pid) known_.emplace(info.pid, rank);
    }
  }
  return sample_processes(known_, true, true);
}

void HangMonitor::inspect(const rendezvous::Inspect& request) {
  if (!stopped_ && !inspection_) tasks_.start(start_inspection(this, request));
}

Awaitable<> HangMonitor::start_inspection(HangMonitor* self, rendezvous::Inspect request) {
  const auto deadline = ProcessInspection::Clock::now() + milliseconds(request.timeout_ms);
  bool active = false;
  if (request.unless_active) {  // check before debuggers stop the workers
    const nanoseconds before = self->tracker_.last_activity();
    active = self->sees_work();
    InspectedWorkers waiting = self->leaders_;
    std::erase_if(waiting, [self](const auto& entry) { return !self->waiting_.contains(entry.first); });
    if (!active) co_await query_ranks(self, std::move(waiting));
    // The master may not know yet what was printed since the last sample.
    active = active || self->tracker_.last_activity() > before || !self->tracker_.is_quiet(steady_now());
  }
  if (self->stopped_ || self->inspection_ || request.attempt != self->attempt_) co_return;
  if (active) {
    self->tracker_.record_activity(steady_now());
    self->send_change();
    // Without any rank: the node has answered, and the Quiet message before it ends the master's inspection.
    rendezvous::Inspection nothing;
    nothing.attempt = self->attempt_;
    nothing.last = true;
    self->send_(nothing);
    co_return;
  }
  self->make_inspection(request, deadline);
  co_await self->inspection_->run();
  self->inspection_.reset();
}

void HangMonitor::make_inspection(const rendezvous::Inspect& request,
                                  ProcessInspection::Clock::time_point deadline) {
  ProcessInspection::Options options;
  options.attempt = attempt_;
  options.leaders = leaders_;
  options.worker_path = worker_path_;
  options.ras_address = ras_address_;
  options.deadline = deadline;
  options.world_size = world_size_;
  options.debuggers = request.debuggers;
  options.send_collectives = [this](const rendezvous::WorkerCollectives& found) { send_(found); };
  // Debuggers stop and continue the workers. When all nodes have answered, the master either stops the job,
  // or workers of another node are active again and monitoring continues.
  if (request.debuggers) resume_at_ = steady_now() + milliseconds(request.timeout_ms) + kVerdictTime;
  inspection_ = std::make_unique<ProcessInspection>(
      executor_, std::move(options), [this, texts = request.texts](const rendezvous::Inspection& found) {
        rendezvous::Inspection wanted = found;
        if (!texts) {  // only what goes into the verdict
          const std::size_t at = found.text.find(kRasFindings);
          wanted.text = at == std::string::npos ? "" : found.text.substr(at, found.text.find('\n', at) - at);
        }
        if (found.last || found.only_stacks_follow || !wanted.text.empty() || !found.state.empty())
          report(std::move(wanted));
      });
}

/// Adds the rank's step, if the rank reports steps.
void HangMonitor::report(rendezvous::Inspection inspection) {
  const auto known = steps_.find(inspection.rank);
  if (known != steps_.end() && !inspection.last && !inspection.only_stacks_follow) {
    inspection.steps = true;
    inspection.step = known->second.step;
    if (!inspection.state.empty()) {
      const std::string phase = known->second.phase.empty() ? "" : ", in " + known->second.phase;
      inspection.state = "at step " + std::to_string(inspection.step) + phase + ": " + inspection.state;
    }
  }
  send_(inspection);
}

void HangMonitor::stop() {
  stopped_ = true;
  timer_.cancel();
  if (servers_) servers_->stop();
  if (inspection_) inspection_->cancel();
}

Awaitable<> HangMonitor::idle() {
  co_await tasks_.all_ends();
}

std::vector<pid_t> HangMonitor::pids() const {
  if (!inspection_) return {};
  return {inspection_->pids().begin(), inspection_->pids().end()};
}

}  // namespace ddp::launcher
