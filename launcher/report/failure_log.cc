#include "launcher/report/failure_log.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/report/clean_text.h"
#include "rendezvous/flight_recorder/desync_analysis.h"

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
  attempt_ = attempt;
  began_ = now;
  started_.clear();
  stop_ordered_.reset();
  kill_due_.reset();
  collectives_.clear();
  ended_well_.clear();
  lost_peers_.clear();
}

void FailureLog::end_attempt() {
  diagnose_collectives();
  if (const Failure* root = root_cause()) end_.earlier.push_back(*root);
  ++end_.restarts;
  forget_attempt();
}

void FailureLog::restore_attempt() {
  if (end_.earlier.empty()) return;
  end_.failures = {std::move(end_.earlier.back())};
  end_.earlier.pop_back();
  --end_.restarts;
}

void FailureLog::forget_attempt() {
  end_.failures.clear();
  end_.early.clear();
}

void FailureLog::worker_ended_well(const WorkerIdentity& worker, Interval happened) {
  const Time at = (happened.earliest + happened.latest) / 2;
  const Time error = (happened.latest - happened.earliest) / 2;
  ended_well_.insert(worker.rank);
  if (!stop_ordered_) end_.early.push_back({worker.rank, worker.host, at - began_, error});
}

const Failure* FailureLog::root_cause() const {
  const auto root = pick_root_cause(end_.failures);
  return root ? &end_.failures[*root] : nullptr;
}

void FailureLog::worker_failed(const WorkerIdentity& worker, const rendezvous::WorkerExited& end,
                               Interval happened) {
  const Time at = (happened.earliest + happened.latest) / 2;
  const Time error = (happened.latest - happened.earliest) / 2;
  Failure failure;
  failure.host = worker.host;
  failure.rank = worker.rank;
  failure.local_rank = worker.local_rank;
  failure.attempt = failure.start_attempt = attempt_;
  failure.pid = end.pid;
  failure.status = end.code;
  failure.signal = end.signal;
  failure.core_dumped = end.core;
  failure.lost_peers = lost_peers_.contains(worker.rank);
  failure.at = at - began_;
  failure.when = at;
  failure.at_error = error;
  const auto started = started_.find(worker.rank);
  if (started != started_.end() && end.pid != 0) {
    failure.ran = duration_cast<milliseconds>(std::max(at - started->second.at, Time(0)));
    failure.start_attempt = started->second.start_attempt;
  }
  failure.kind = end.signal != 0 ? Failure::Kind::kSignaled : Failure::Kind::kExited;
  if (end.pid == 0) {
    failure.kind = Failure::Kind::kExec;
    failure.error = Error{ErrorCode::kExec, end.text, end.sys};
  }
  // A failure after our stop is its consequence, except for signals. The agent knows whether it sent a
  // SIGTERM. A SIGKILL is ours only after the grace, since none is sent before.
  const bool asked = end.signal == SIGTERM || end.signal == SIGINT || end.signal == SIGHUP;
  if (asked) {
    failure.stopped_by_us = end.after_stop;
  } else if (stop_ordered_) {
    failure.stopped_by_us = end.signal == SIGKILL ? at + error >= *kill_due_ : at >= *stop_ordered_;
  }
  end_.failures.push_back(std::move(failure));
}

void FailureLog::evidence(const rendezvous::WorkerEvidence& evidence) {
  end_.add_evidence(static_cast<int>(evidence.rank), evidence.attempt, evidence);
}

void FailureLog::collectives(const rendezvous::WorkerCollectives& collectives, int world_size) {
  // Keeps one dump per rank, so that a misbehaving node cannot exhaust memory.
  const bool again = std::any_of(collectives_.begin(), collectives_.end(), [&](const auto& known) {
    return known.rank == static_cast<int>(collectives.rank);
  });
  if (again) return;
  auto dump = rendezvous::parse_dump(collectives.log);
  if (dump && dump->rank == static_cast<int>(collectives.rank) && dump->attempt == attempt_ &&
      dump->world_size == world_size)
    collectives_.push_back(std::move(*dump));
}

void FailureLog::diagnose_collectives() {
  const auto root = pick_root_cause(end_.failures);
  if (!root || collectives_.empty()) return;
  Failure& cause = end_.failures[*root];
  // A rank that dies on its own leaves the others at arbitrary points. Their dumps are useful only if they
  // had time to come together: the job hung, or a rank gave up in an operation.
  const bool hung = cause.kind == Failure::Kind::kHung;
  if (!hung && (cause.kind != Failure::Kind::kExited || !waits_in_collective(collectives_, cause.rank)))
    return;
  rendezvous::DesyncVerdict verdict = rendezvous::analyze_desync(collectives_, ended_well_);
  if (!hung && (!verdict.waited_for || verdict.named.count(cause.rank) != 0)) return;
  cause.waited_for = std::move(verdict.text);
  clean_line(cause.waited_for);  // it has operation names from the ranks' dumps
}

void FailureLog::set_last_output(int rank, std::vector<std::string> lines, std::string file) {
  for (Failure& failure : end_.failures) {
    if (!failure.of_worker() || failure.rank != rank) continue;
    failure.last_stderr = std::move(lines);
    failure.stderr_path = std::move(file);
    return;
  }
}

void FailureLog::node_failed(const std::string& host, Error error, Interval happened) {
  const Time now = happened.latest;
  Failure failure;
  failure.kind = Failure::Kind::kNode;
  failure.host = host;
  failure.attempt = attempt_;
  failure.error = without_host(std::move(error), host);
  failure.at = now - began_;
  failure.when = now;
  failure.stopped_by_us = false;
  end_.failures.push_back(std::move(failure));
}

void FailureLog::explain_node(const std::string& host, Error error) {
  const auto known = std::find_if(end_.failures.rbegin(), end_.failures.rend(), [&](const Failure& failure) {
    return failure.kind == Failure::Kind::kNode && failure.host == host;
  });
  if (known != end_.failures.rend()) known->error = without_host(std::move(error), host);
}

void FailureLog::job_hung(Error error, Interval happened) {
  const Time now = happened.latest;
  Failure failure;
  failure.kind = Failure::Kind::kHung;
  failure.attempt = attempt_;
  failure.error = std::move(error);
  failure.at = now - began_;
  failure.when = now;
  end_.failures.push_back(std::move(failure));
}

void FailureLog::name_job(std::string job, std::string directory) {
  end_.job = std::move(job);
  end_.job_dir = std::move(directory);
}

void FailureLog::stop_ordered(Time now, milliseconds grace) {
  if (!stop_ordered_) stop_ordered_ = now;
  kill_due_ = std::min(kill_due_.value_or(now + grace), now + grace);
}

}  // namespace ddp::launcher
