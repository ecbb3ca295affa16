#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/asio.h"
#include "launcher/hang/hang_detection.h"
#include "launcher/inspection/process_inspection.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The agent's part in hang detection, for one attempt after another. Samples the workers' activity, notifies
/// the master when it changes (Quiet), and inspects the workers on request (Inspect). Workers that are silent
/// for a while are queried: PyTorch's recorder tells which of them wait in a collective, where they may spin.
/// Costs nothing between samples. Loop thread; the owner keeps the object alive until `idle` has returned.
class HangMonitor {
 public:
  using SendMessage = std::function<void(const rendezvous::Message&)>;
  /// Returns whether the agent holds back output of the workers; it then causes their silence itself.
  using IsOutputPaused = std::function<bool()>;

  HangMonitor(asio::any_io_executor executor, SendMessage send, IsOutputPaused is_output_paused);
  ~HangMonitor();

  /// The shortest time without activity that the master acts on; 0 (the default): attempts are not monitored.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  /// Call before the workers of an attempt start, when `idle`. `env`: their environment, for PATH and
  /// NCCL_RAS_ADDR.
  void begin(std::uint32_t attempt, std::uint32_t world_size, const std::vector<std::string>& env);
  void worker_started(std::uint32_t rank, InspectedWorker worker) { leaders_[rank] = std::move(worker); }
  void worker_ended(std::uint32_t rank) {
    leaders_.erase(rank);
    steps_.erase(rank);
    waiting_.erase(rank);
    doubts_.erase(rank);
  }
  /// Records that the rank reports its steps (docs/developers/worker_protocol.md). If all ranks of the node
  /// do, CPU time does not count as activity, because ranks that wait for each other may spin.
  void worker_stepped(std::uint32_t rank, std::uint64_t step, const std::string& phase);
  void worker_wrote();
  /// The rank's steps are unknown from here on: it is sampled like any other process.
  void worker_steps_no_more(std::uint32_t rank) { steps_.erase(rank); }
  void inspect(const rendezvous::Inspect& request);
  /// Call when the attempt is being stopped: ends all sampling and sending, until the next attempt.
  void stop();
  /// Waits until no task of this object runs.
  Awaitable<> idle();
  /// Children that no other component may reap.
  std::vector<pid_t> pids() const;

 private:
  static Awaitable<> watch_workers(HangMonitor* self);
  static Awaitable<> start_inspection(HangMonitor* self, rendezvous::Inspect request);
  void make_inspection(const rendezvous::Inspect& request, ProcessInspection::Clock::time_point deadline);
  void sample();
  void report_changes();
  void send_change();
  bool all_step() const { return !leaders_.empty() && steps_.size() == leaders_.size(); }
  bool is_query_due() const;
  static Awaitable<> query_collectives(HangMonitor* self);
  static Awaitable<> query_ranks(HangMonitor* self, InspectedWorkers ranks);
  static Awaitable<> query_rank(HangMonitor* self, std::uint32_t rank, std::string server);
  bool sees_work();
  void report(rendezvous::Inspection inspection);
  bool sample_some();
  using RanksOfProcesses = std::map<pid_t, std::uint32_t>;
  /// Samples these processes and the leaders. `files`: also what they read and write.
  bool sample_processes(const RanksOfProcesses& processes, bool whole, bool files);
  bool sample_trees();

  asio::any_io_executor executor_;
  std::uint32_t attempt_ = 0;
  std::chrono::milliseconds timeout_{0};
  SendMessage send_;
  IsOutputPaused output_paused_;
  ActivityTracker tracker_;
  std::uint32_t world_size_ = 0;
  InspectedWorkers leaders_;  ///< the live ranks
  struct ReportedStep {
    std::uint64_t step = 0;
    std::string phase;
  };
  std::map<std::uint32_t, ReportedStep> steps_;  ///< of the live ranks that report steps
  RanksOfProcesses known_;                  ///< other processes of the trees, as of the last whole sample
  std::chrono::nanoseconds last_word_{0};   ///< of the workers: output or a step
  std::chrono::nanoseconds last_query_{0};  ///< of their collectives
  std::map<std::uint32_t, std::string> recorder_states_;  ///< what each rank's recorder told last, as text
  std::set<std::uint32_t> waiting_;  ///< ranks that waited in a collective at their last query
  /// When a rank of waiting_ was last seen at work after that query: it spins, or has gone on. The next query
  /// tells; no decision is made before.
  std::map<std::uint32_t, std::chrono::nanoseconds> doubts_;
  bool querying_ = false;
  std::string worker_path_;
  std::string ras_address_;
  std::unique_ptr<ProcessInspection> inspection_;
  std::chrono::nanoseconds resume_at_{0};  ///< no samples before: debuggers disturb the workers
  asio::steady_timer timer_;
  std::unique_ptr<BlockingCalls> servers_;  ///< of this attempt
  TaskGroup tasks_;
  bool stopped_ = true;
};

}  // namespace ddp::launcher
