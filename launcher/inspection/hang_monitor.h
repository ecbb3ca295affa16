#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "launcher/hang/activity_tracker.h"
#include "launcher/inspection/process_inspection.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The agent's part in finding hangs, for one attempt: samples what its workers do, tells the master when
/// that changes (Quiet), and looks into them when asked (Inspect). Costs nothing between samples. Loop
/// thread; the owner keeps it alive until `idle` has returned.
class HangMonitor {
 public:
  using SendMessage = std::function<void(const rendezvous::Message&)>;
  /// Whether output of the workers waits for us: then their silence is our doing.
  using IsOutputPaused = std::function<bool()>;

  HangMonitor(asio::any_io_executor executor, std::uint32_t attempt, std::chrono::milliseconds timeout,
              SendMessage send, IsOutputPaused is_output_paused);
  ~HangMonitor();

  /// `env`: of the workers; PATH and NCCL_RAS_ADDR are read from it.
  void start(const std::vector<std::string>& env);
  void worker_started(std::uint32_t rank, pid_t pid) { leaders_[rank] = pid; }
  void worker_ended(std::uint32_t rank);
  /// It reports its steps (docs/worker_protocol.md). Where all ranks of the node do, CPU time is no sign of
  /// life any more: ranks that wait for each other may spin.
  void worker_stepped(std::uint32_t rank, std::uint64_t step, const std::string& phase);
  void worker_wrote();
  /// Its steps are not heard of any more: as any other process.
  void worker_steps_no_more(std::uint32_t rank) { steps_.erase(rank); }
  void inspect(const rendezvous::Inspect& request);
  /// The attempt is being stopped: nothing is watched any more, nothing more is sent.
  void stop();
  /// Waits until nothing of ours runs.
  Awaitable<> idle();
  /// Children that nobody else may reap.
  std::vector<pid_t> pids() const;

 private:
  static Awaitable<> watch_workers(HangMonitor* self);
  static Awaitable<> run_inspection(HangMonitor* self);
  void sample();
  void report_changes();
  bool all_step() const { return !leaders_.empty() && steps_.size() == leaders_.size(); }
  bool sees_work();
  void report(rendezvous::Inspection inspection);
  bool sample_some();
  bool sample_known();
  bool sample_trees();
  void start_task(Awaitable<> task);

  asio::any_io_executor executor_;
  std::uint32_t attempt_;
  std::chrono::milliseconds timeout_;
  SendMessage send_;
  IsOutputPaused output_paused_;
  ActivityTracker tracker_;
  std::map<std::uint32_t, pid_t> leaders_;  ///< the living ranks
  struct ReportedStep {
    std::uint64_t step = 0;
    std::string phase;
  };
  std::map<std::uint32_t, ReportedStep> steps_;  ///< of the living ranks that report them
  std::vector<pid_t> known_;  ///< the other processes of their trees, as the last whole look saw them
  std::string worker_path_;
  std::string ras_address_;
  std::unique_ptr<ProcessInspection> inspection_;
  std::chrono::nanoseconds resume_at_{0};  ///< no samples before: what the workers do is our doing
  asio::steady_timer timer_;
  asio::steady_timer task_done_;
  std::size_t tasks_ = 0;
  bool stopped_ = false;
};

}  // namespace ddp::launcher
