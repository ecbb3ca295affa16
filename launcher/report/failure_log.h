#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/report/exit_report.h"
#include "rendezvous/flight_recorder/flight_recorder.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// What went wrong in a job, attempt by attempt, and which of it our own stop brought about (sans-IO). Times
/// are the master's CLOCK_MONOTONIC.
class FailureLog {
 public:
  using Time = std::chrono::nanoseconds;

  /// Who a worker was.
  struct WorkerIdentity {
    std::string host;
    int rank = 0;
    int local_rank = 0;
  };

  /// The attempt's workers start now; failures of its start are counted from here, too.
  void begin_attempt(std::uint32_t attempt, Time now);
  /// Puts the attempt's root cause with the earlier ones and forgets the rest: a new attempt follows.
  void end_attempt();
  /// Forgets what went wrong in the attempt: it was stopped for no failure.
  void forget_attempt() { end_.failures.clear(); }

  /// `start_attempt`: the attempt in which its process was started, at `at`.
  void worker_started(int rank, Time at, std::uint32_t start_attempt) {
    started_[rank] = {at, start_attempt};
  }
  /// A bad end that happened at `at` ± `error`. What our stop ended is told by time and signal, see
  /// stop_ordered.
  void worker_failed(const WorkerIdentity& worker, const rendezvous::WorkerExited& end, Time at, Time error);
  void evidence(const rendezvous::WorkerEvidence& evidence);
  /// What a rank of the attempt, of so many, left of its collectives; what is none is left out.
  void collectives(const rendezvous::WorkerCollectives& collectives, int world_size);
  /// Compares what all ranks of the attempt left: Failure::waited_for of its root cause. end_attempt does so,
  /// too.
  void diagnose_collectives();
  void worker_ended_well(int rank) { ended_well_.insert(rank); }
  /// A rank of the attempt reported, before its end, others that it cannot reach.
  void lost_peers(int rank) { lost_peers_.insert(rank); }
  /// What a rank that failed in this attempt wrote last on stderr, and the file that has all of it.
  void set_last_output(int rank, std::vector<std::string> lines, std::string file);
  void node_failed(const std::string& host, Error error, Time now);
  /// Why the node failed that was reported before.
  void explain_node(const std::string& host, Error error);
  void job_hung(Error error, Time now);
  void master_failed(Error error) { end_.master = std::move(error); }
  void stopped_by_user(int signal) { end_.stop_signal = signal; }

  /// Stop is with every node: SIGTERM now, SIGKILL after `grace`. A later call can only shorten the grace.
  void stop_ordered(Time now, std::chrono::milliseconds grace);
  Time kill_due() const { return *kill_due_; }  ///< needs stop_ordered

  const JobEnd& end() const { return end_; }
  /// The attempt's root cause as it is known now; null: none.
  const Failure* root_cause() const;

 private:
  JobEnd end_;
  std::uint32_t attempt_ = 0;
  Time began_{0};
  struct ProcessStart {
    Time at{0};
    std::uint32_t start_attempt = 0;
  };
  std::map<int, ProcessStart> started_;                      ///< of the process of each rank
  std::vector<rendezvous::FlightRecorderDump> collectives_;  ///< of the attempt
  std::set<int> ended_well_;                                 ///< ranks, in the attempt
  std::set<int> lost_peers_;                                 ///< the same
  std::optional<Time> stop_ordered_;
  std::optional<Time> kill_due_;
};

}  // namespace ddp::launcher
