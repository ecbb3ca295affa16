#include "launcher/inspection/hang_monitor.h"

#include <unistd.h>

#include <string_view>
#include <utility>

#include "base/clock.h"
#include "launcher/inspection/process_inspection.h"
#include "launcher/keeper/process_table.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// The time from the end of an inspection to the master's decision.
constexpr std::chrono::seconds kVerdictTime{3};

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

void HangMonitor::begin(std::uint32_t attempt, const std::vector<std::string>& env) {
  leaders_.clear();
  steps_.clear();
  known_.clear();
  if (timeout_.count() == 0) return;
  stopped_ = false;
  attempt_ = attempt;
  tracker_ = ActivityTracker(timeout_, steady_now());
  worker_path_ = value_of(env, "PATH");
  ras_address_ = value_of(env, "NCCL_RAS_ADDR");
  resume_at_ = nanoseconds(0);
  tasks_.start(watch_workers(this));
}

void HangMonitor::worker_wrote() {
  if (!stopped_) tracker_.record_activity(steady_now());
}

void HangMonitor::worker_stepped(std::uint32_t rank, std::uint64_t step, const std::string& phase) {
  if (leaders_.count(rank) == 0) return;
  steps_[rank] = ReportedStep{step, phase};
  tracker_.record_activity(steady_now());
}

Awaitable<> HangMonitor::watch_workers(HangMonitor* self) {
  while (!self->stopped_) {
    self->timer_.expires_after(ActivityTracker::period(self->timeout_));
    co_await self->timer_.async_wait(kUseTuple);
    if (!self->stopped_ && steady_now() >= self->resume_at_ && !self->leaders_.empty()) self->sample();
  }
}

void HangMonitor::sample() {
  tracker_.begin_sample(steady_now());
  // Workers that wait for credit cannot go on, which is the reader's doing and no hang. Otherwise the
  // cheapest proof of activity comes first: steps that ranks report, a few processes, all known ones, and
  // only then all of /proc.
  if (output_paused_())
    tracker_.record_activity(steady_now());
  else if (!all_step() && !sample_some() && !sample_processes(known_, false) &&
           tracker_.whole_due(steady_now()))
    sample_trees();
  report_changes();
}

/// Returns whether the workers were active since the last sample, including processes that were unknown until
/// then.
bool HangMonitor::sees_work() {
  if (output_paused_()) return true;
  return !all_step() && (sample_some() || sample_processes(known_, false) || sample_trees());
}

void HangMonitor::report_changes() {
  const auto change = tracker_.poll_change(steady_now());
  if (!change) return;
  send_(rendezvous::Quiet{attempt_, change->quiet, static_cast<std::uint64_t>(change->since.count())});
}

/// Reads a few files, which suffices while the job works.
bool HangMonitor::sample_some() {
  return sample_processes(tracker_.pacemakers(), false);
}

bool HangMonitor::sample_processes(const std::vector<pid_t>& pids, bool whole) {
  std::vector<ProcessTime> times;
  for (const pid_t pid : pids) {
    if (const auto info = read_stat(pid)) times.push_back(process_time(*info, false));
  }
  for (const auto& [rank, pid] : leaders_) {
    if (const auto info = read_stat(pid)) times.push_back(process_time(*info, true));
  }
  return tracker_.add_sample(times, whole, steady_now());
}

bool HangMonitor::sample_trees() {
  const ProcessForest forest;
  known_.clear();
  for (const auto& [rank, leader] : leaders_) {
    for (const ProcessInfo& info : forest.tree(leader)) {
      // Leaders are sampled in any case.
      if (info.pid != leader) known_.push_back(info.pid);
    }
  }
  return sample_processes(known_, true);
}

void HangMonitor::inspect(const rendezvous::Inspect& request) {
  if (stopped_ || inspection_ || request.attempt != attempt_) return;
  if (sees_work()) {  // check before debuggers stop the workers
    tracker_.record_activity(steady_now());
    report_changes();
    // Without any rank: the node has answered, and the Quiet message before it ends the master's inspection.
    rendezvous::Inspection nothing;
    nothing.attempt = attempt_;
    nothing.last = true;
    send_(nothing);
    return;
  }
  ProcessInspection::Options options;
  options.attempt = attempt_;
  options.leaders = leaders_;
  options.worker_path = worker_path_;
  options.ras_address = ras_address_;
  options.deadline = ProcessInspection::Clock::now() + milliseconds(request.timeout_ms);
  // Debuggers stop and continue the workers. When all nodes have answered, the master either stops the job,
  // or workers of another node are active again and monitoring continues.
  resume_at_ = steady_now() + milliseconds(request.timeout_ms) + kVerdictTime;
  inspection_ = std::make_unique<ProcessInspection>(
      executor_, std::move(options), [this](const rendezvous::Inspection& found) { report(found); });
  tasks_.start(run_inspection(this));
}

/// Adds the rank's step, if the rank reports steps.
void HangMonitor::report(rendezvous::Inspection inspection) {
  const auto known = steps_.find(inspection.rank);
  if (known != steps_.end() && !inspection.last) {
    inspection.steps = true;
    inspection.step = known->second.step;
    if (!inspection.state.empty()) {
      const std::string phase = known->second.phase.empty() ? "" : ", in " + known->second.phase;
      inspection.state = "at step " + std::to_string(inspection.step) + phase + ": " + inspection.state;
    }
  }
  send_(inspection);
}

Awaitable<> HangMonitor::run_inspection(HangMonitor* self) {
  co_await self->inspection_->run();
  self->inspection_.reset();
}

void HangMonitor::stop() {
  stopped_ = true;
  timer_.cancel();
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
