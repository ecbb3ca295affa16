#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/report/job_end.h"
#include "rendezvous/flight_recorder/flight_recorder.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Collects the failures of a job, attempt by attempt (sans-IO). Times are of the master's CLOCK_MONOTONIC.
/// Each rank costs the same, however many have failed.
class FailureLog {
 public:
  using Time = std::chrono::nanoseconds;

  struct WorkerIdentity {
    std::string host;
    int rank = 0;
    int local_rank = 0;
  };

  /// The attempt's workers start now. Failures of the start itself are timed from here too.
  void begin_attempt(std::uint32_t attempt, Time now);
  /// Keeps the attempt's root cause among the earlier ones and drops its other failures. The job
  /// restarts.
  void end_attempt();
  /// The restart that end_attempt prepared does not come: the last attempt's root cause is the job's.
  void restore_attempt();
  /// Drops the attempt's failures, because it was stopped without a failure.
  void forget_attempt();

  /// `start_attempt` is the attempt in which the worker's process was started, at `at`.
  void worker_started(int rank, Time at, std::uint32_t start_attempt) {
    started_[rank] = {at, start_attempt};
  }
  /// Adds an abnormal exit.
  void worker_failed(const WorkerIdentity& worker, const rendezvous::WorkerExited& end, Interval happened);
  /// Adds the failure of a worker that still runs. `what`: without its name, "printed …".
  void worker_misbehaved(const WorkerIdentity& worker, std::string what, Interval happened);
  void evidence(const rendezvous::WorkerEvidence& evidence);
  /// Takes the flight recorder dump of a rank of the attempt, which has `world_size` ranks. Ignores an
  /// invalid dump.
  void collectives(const rendezvous::WorkerCollectives& collectives, int world_size);
  /// Compares the dumps of all ranks of the attempt and sets Failure::waited_for of its root cause.
  /// end_attempt does this too.
  void diagnose_collectives();
  void worker_ended_well(const WorkerIdentity& worker, Interval happened);
  /// A rank of the attempt reported, before its end, peers that it cannot reach.
  void lost_peers(int rank) { lost_peers_.insert(rank); }
  /// Sets the last stderr lines of a rank that failed in this attempt, and the file with its whole stderr.
  void set_last_output(int rank, std::vector<std::string> lines, std::string file);
  /// A node was lost at `happened`, which is long before the loss is detected if the node was silent.
  void node_failed(const std::string& host, Error error, Interval happened);
  /// Sets why a node failed whose failure was reported before.
  void explain_node(const std::string& host, Error error);
  void job_hung(Error error, Interval happened);
  /// The ranks are being asked again: what they told before counts no more.
  void begin_inspection();
  /// Sets JobEnd::hang. Adds what the flight recorders tell to a verdict that knows nothing of them.
  void name_hang(HangVerdict verdict);
  /// The job goes on.
  void hang_over() { end_.hang.reset(); }
  void master_failed(Error error) { end_.master = std::move(error); }
  /// Sets JobEnd::job and job_dir.
  void name_job(std::string job, std::string directory);
  /// `by`: JobEnd::stopped_by. `awaited`: what the start was waiting for; empty: the workers ran.
  void stopped_by_user(int signal, std::string by, std::string awaited) {
    end_.stop_signal = signal;
    end_.stopped_by = std::move(by);
    end_.awaited = std::move(awaited);
  }
  /// See JobEnd::grace_ended_by.
  void grace_ended_by(std::string who) { end_.grace_ended_by = std::move(who); }

  /// Stop was sent to every node: a signal now, SIGKILL after `grace`. A later call can only shorten the
  /// grace.
  void stop_ordered(Time now, std::chrono::milliseconds grace);
  /// Requires stop_ordered.
  Time kill_due() const {
    DDP_REQUIRE(kill_due_.has_value(), attempt_);
    return *kill_due_;
  }

  const JobEnd& end() const { return end_; }
  /// Returns the failure of a rank of this attempt; null: none.
  const Failure* worker_failure(int rank) const;
  /// Returns the root cause of the attempt so far; null: none.
  const Failure* root_cause() const;

 private:
  Failure* find_worker(int rank);
  rendezvous::DesyncVerdict desync() const;
  void add_recorders(HangVerdict& verdict, const rendezvous::DesyncVerdict& desync) const;
  Failure failure_of(const WorkerIdentity& worker, Interval happened) const;
  void add(Failure failure, Interval happened);

  JobEnd end_;
  std::unordered_map<int, std::size_t> by_rank_;          ///< a rank's index in end_.failures
  std::unordered_map<std::string, std::size_t> by_host_;  ///< a lost node's index in end_.failures
  std::uint32_t attempt_ = 0;
  Time began_{0};
  struct ProcessStart {
    Time at{0};
    std::uint32_t start_attempt = 0;
  };
  std::map<int, ProcessStart> started_;                      ///< the process of each rank
  std::vector<rendezvous::FlightRecorderDump> collectives_;  ///< of the attempt
  std::map<int, std::size_t> with_collectives_;              ///< a rank's index in collectives_
  int world_size_ = 0;            ///< of the attempt; 0: no rank has told collectives
  std::set<int> ended_well_;      ///< ranks of the attempt
  std::set<int> lost_peers_;      ///< ranks of the attempt
  std::optional<Time> kill_due_;  ///< once the stop is ordered
};

}  // namespace ddp::launcher
