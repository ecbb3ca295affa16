#include "launcher/report/failure_log.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/result.h"
#include "launcher/report/root_cause.h"
#include "rendezvous/flight_recorder/flight_recorder.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

/// The report names the host, so texts must not repeat it.
Error without_host(Error error, const std::string& host) {
  const std::string prefix = host + ": ";
  if (error.text.starts_with(prefix)) error.text.erase(0, prefix.size());
  const std::string inside = ": " + prefix;  // "the connection was lost: gpu01: no route to host"
  if (const std::size_t at = error.text.find(inside); at != std::string::npos)
    error.text.replace(at, inside.size(), ": ");
  return error;
}

/// HangVerdict::Witness::source
constexpr const char* kRecorder = "flight recorder";
constexpr const char* kStacks = "stacks";

bool waits_in_collective(const std::vector<rendezvous::FlightRecorderDump>& dumps, int rank) {
  for (const rendezvous::FlightRecorderDump& dump : dumps) {
    for (const rendezvous::RecordedGroup& group : dump.groups) {
      const bool open = std::ranges::find(group.entries, 0, &rendezvous::RecordedCollective::finished) !=
                        group.entries.end();
      if (dump.rank == rank && open) return true;
    }
  }
  return false;
}

}  // namespace

void FailureLog::begin_attempt(std::uint32_t attempt, Time now) {
  DDP_REQUIRE(attempt >= attempt_, attempt, attempt_);
  attempt_ = attempt;
  // Called at the begin and again when the workers start, so that the time to start them is no time of
  // theirs.
  began_ = now;
  started_.clear();
  kill_due_.reset();
  begin_inspection();
  end_.hang.reset();
  ended_well_.clear();
  lost_peers_.clear();
}

void FailureLog::end_attempt() {
  diagnose_collectives();
  if (const Failure* root = root_cause()) {
    end_.earlier.push_back(*root);
    end_.earlier.back().nodes_lost = count_nodes(end_.failures);
  }
  ++end_.restarts;
  DDP_REQUIRE(std::cmp_less_equal(end_.earlier.size(), end_.restarts), end_.earlier.size(), end_.restarts);
  forget_attempt();
}

void FailureLog::restore_attempt() {
  if (end_.earlier.empty()) return;
  Failure last = std::move(end_.earlier.back());
  end_.earlier.pop_back();
  --end_.restarts;
  forget_attempt();
  // Evidence and last lines that are still on their way must find it.
  if (last.of_worker()) by_rank_[last.rank] = 0;
  if (last.kind == Failure::Kind::kNode) by_host_[last.host] = 0;
  end_.failures.push_back(std::move(last));
}

void FailureLog::forget_attempt() {
  end_.failures.clear();
  end_.early.clear();
  by_rank_.clear();
  by_host_.clear();
}

void FailureLog::worker_ended_well(const WorkerIdentity& worker, Interval happened) {
  ended_well_.insert(worker.rank);
  // An exit with 0 after the stop was ordered is the effect of the stop.
  if (!kill_due_) end_.early.push_back({worker.rank, worker.host, happened, began_});
}

const Failure* FailureLog::root_cause() const {
  const auto root = pick_root_cause(end_.failures);
  return root ? &end_.failures[*root] : nullptr;
}

const Failure* FailureLog::worker_failure(int rank) const {
  const auto known = by_rank_.find(rank);
  if (known == by_rank_.end()) return nullptr;
  DDP_REQUIRE(known->second < end_.failures.size(), rank, known->second, end_.failures.size());
  return &end_.failures[known->second];
}

Failure* FailureLog::find_worker(int rank) {
  return const_cast<Failure*>(std::as_const(*this).worker_failure(rank));
}

void FailureLog::add(Failure failure, Interval happened) {
  failure.attempt = attempt_;
  failure.happened = happened;
  failure.attempt_began = began_;
  // A rank fails once in an attempt; a node may be named again with a better reason, so the last entry
  // counts.
  if (failure.of_worker()) by_rank_.try_emplace(failure.rank, end_.failures.size());
  if (failure.kind == Failure::Kind::kNode) by_host_[failure.host] = end_.failures.size();
  end_.failures.push_back(std::move(failure));
}

/// Returns a failure of the worker without its kind.
Failure FailureLog::failure_of(const WorkerIdentity& worker, Interval happened) const {
  Failure failure;
  failure.host = worker.host;
  failure.rank = worker.rank;
  failure.local_rank = worker.local_rank;
  failure.start_attempt = attempt_;
  const auto started = started_.find(worker.rank);
  if (started == started_.end()) return failure;
  failure.ran = duration_cast<milliseconds>(std::max(happened.middle() - started->second.at, Time(0)));
  failure.start_attempt = started->second.start_attempt;
  return failure;
}

void FailureLog::worker_misbehaved(const WorkerIdentity& worker, std::string what, Interval happened) {
  Failure failure = failure_of(worker, happened);
  failure.kind = Failure::Kind::kMisbehaved;
  failure.error = Error{ErrorCode::kInternal, std::move(what), 0};
  add(std::move(failure), happened);
}

void FailureLog::worker_failed(const WorkerIdentity& worker, const rendezvous::WorkerExited& end,
                               Interval happened) {
  // It is the failed rank whose end ddplaunch brought about.
  if (Failure* const known = find_worker(worker.rank);
      known != nullptr && known->kind == Failure::Kind::kMisbehaved && end.after_stop) {
    known->pid = end.pid;
    return;
  }
  Failure failure = failure_of(worker, happened);
  failure.pid = end.pid;
  failure.status = end.code;
  failure.signal = end.signal;
  failure.core_dumped = end.core;
  failure.stopped_by_us = end.after_stop;
  failure.late_kill = end.late_kill;
  failure.lost_peers = lost_peers_.contains(worker.rank);
  failure.kind = end.signal != 0 ? Failure::Kind::kSignaled : Failure::Kind::kExited;
  if (end.pid == 0) {
    failure.kind = Failure::Kind::kExec;
    failure.ran.reset();
    failure.start_attempt = attempt_;
    failure.error = Error{ErrorCode::kExec, end.text, end.sys};
  }
  add(std::move(failure), happened);
}

void FailureLog::evidence(const rendezvous::WorkerEvidence& evidence) {
  const auto rank = static_cast<int>(evidence.rank);
  Failure* failure = evidence.attempt == attempt_ ? find_worker(rank) : nullptr;
  // Evidence takes a moment, and the attempt may be over before it comes.
  if (failure == nullptr) {  // the root cause of an earlier attempt?
    const auto same = std::ranges::find_if(end_.earlier, [&](const Failure& earlier) {
      return earlier.of_worker() && earlier.rank == rank && earlier.attempt == evidence.attempt;
    });
    if (same == end_.earlier.end()) return;
    failure = &*same;
  }
  failure->evidence = read_evidence(evidence);
}

void FailureLog::collectives(const rendezvous::WorkerCollectives& collectives, int world_size) {
  auto dump = rendezvous::parse_dump(collectives.log);
  if (!dump || dump->rank != static_cast<int>(collectives.rank) || dump->attempt != attempt_ ||
      dump->world_size != world_size)
    return;
  world_size_ = world_size;
  // Keeps one dump per rank, so that a misbehaving node cannot exhaust memory. The newest one counts: the job
  // may have gone on after an inspection.
  const auto [known, first] = with_collectives_.try_emplace(dump->rank, collectives_.size());
  if (first) collectives_.emplace_back();
  collectives_[known->second] = std::move(*dump);
}

void FailureLog::diagnose_collectives() {
  const auto root = pick_root_cause(end_.failures);
  if (!root) return;
  Failure& cause = end_.failures[*root];
  rendezvous::DesyncVerdict verdict = desync();
  // A rank that dies on its own leaves the others at arbitrary points. Their dumps are useful only if they
  // had time to come together: the job hung, or a rank gave up in an operation (PyTorch's watchdog aborts). A
  // rank that the others wait for is not helped by the news that others wait for it.
  const bool aborted = cause.kind == Failure::Kind::kSignaled && cause.signal == SIGABRT;
  const bool gave_up =
      aborted || (cause.kind == Failure::Kind::kExited && waits_in_collective(collectives_, cause.rank));
  // What it has called itself explains it. So does, if it was aborted, where the others are: gloo aborts a
  // rank that gets more bytes than it expects.
  const bool tells =
      cause.kind == Failure::Kind::kHung ||
      (gave_up && verdict.waited_for && (aborted || verdict.differs || !verdict.named.contains(cause.rank)));
  const bool says_little = verdict.by_stacks && end_.hang && end_.hang->quiet <= Time(0);
  if (!tells || says_little || collectives_.empty()) {
    if (end_.hang && end_.hang->kind == HangVerdict::Kind::kFailed) end_.hang.reset();
    return;
  }
  // Logs that came at the end of the ranks may tell more than the inspection did.
  if (end_.hang) add_recorders(*end_.hang, verdict);
  cause.waited_for = std::move(verdict.text);
}

rendezvous::DesyncVerdict FailureLog::desync() const {
  rendezvous::DesyncVerdict verdict = rendezvous::analyze_desync(collectives_, ended_well_);
  rendezvous::clean_line(verdict.text);  // it has operation names from the ranks' dumps
  return verdict;
}

void FailureLog::begin_inspection() {
  collectives_.clear();
  with_collectives_.clear();
  world_size_ = 0;
}

void FailureLog::name_hang(HangVerdict verdict) {
  verdict.attempt = attempt_;
  if (!collectives_.empty()) add_recorders(verdict, desync());
  end_.hang = std::move(verdict);
}

void FailureLog::add_recorders(HangVerdict& verdict, const rendezvous::DesyncVerdict& desync) const {
  using Confidence = HangVerdict::Confidence;
  std::erase_if(verdict.witnesses,
                [](const auto& witness) { return witness.source == kRecorder || witness.source == kStacks; });
  // In a job that is active a rank may merely be later than others.
  if (desync.by_stacks && (desync.text.empty() || verdict.quiet <= Time(0))) return;
  verdict.witnesses.insert(verdict.witnesses.begin(),
                           {desync.by_stacks ? kStacks : kRecorder, collectives_.size(),
                            desync.text.empty() ? "no rank waits in a collective" : desync.text});
  if (desync.text.empty() || (verdict.kind == HangVerdict::Kind::kActive && !desync.waited_for)) return;
  verdict.text = desync.text;
  verdict.ranks.assign(desync.named.begin(), desync.named.end());
  const std::size_t known = collectives_.size() + ended_well_.size();
  verdict.confidence = desync.unsure || (desync.by_stacks && desync.differs) ? Confidence::kLow
                       : !desync.by_stacks && !desync.named.empty() && desync.waited_for &&
                               std::cmp_greater_equal(known, world_size_)
                           ? Confidence::kHigh
                           : Confidence::kMedium;
}

void FailureLog::set_last_output(int rank, std::vector<std::string> lines, std::string file) {
  Failure* failure = find_worker(rank);
  if (failure == nullptr) return;
  failure->last_stderr = std::move(lines);
  failure->stderr_path = std::move(file);
}

void FailureLog::node_failed(const std::string& host, Error error, Interval happened) {
  Failure failure;
  failure.kind = Failure::Kind::kNode;
  failure.host = host;
  failure.error = without_host(std::move(error), host);
  add(std::move(failure), happened);
}

void FailureLog::explain_node(const std::string& host, Error error) {
  const auto known = by_host_.find(host);
  if (known == by_host_.end()) return;
  DDP_REQUIRE(known->second < end_.failures.size(), host, known->second, end_.failures.size());
  end_.failures[known->second].error = without_host(std::move(error), host);
}

void FailureLog::job_hung(Error error, Interval happened) {
  Failure failure;
  failure.kind = Failure::Kind::kHung;
  failure.error = std::move(error);
  add(std::move(failure), happened);
}

void FailureLog::name_job(std::string job, std::string directory) {
  end_.job = std::move(job);
  end_.job_dir = std::move(directory);
}

void FailureLog::stop_ordered(Time now, milliseconds grace) {
  DDP_REQUIRE(grace.count() >= 0, grace.count());
  kill_due_ = std::min(kill_due_.value_or(now + grace), now + grace);
}

}  // namespace ddp::launcher
