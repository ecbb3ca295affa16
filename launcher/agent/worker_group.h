#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/result.h"
#include "launcher/agent/worker_pipes.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {

/// One worker to start; everything is resolved. The group adds the pipes, the control group
/// and the signal that a worker gets when the agent dies.
struct WorkerSpec {
  std::uint32_t local_rank = 0;  ///< LOCAL_RANK
  ChildSpec child;
  bool wants_stdin = false;  ///< gets a pipe; all others read /dev/null
};

/// The events that a group reports to its owner, by local rank. Called on the loop thread.
class WorkerEvents : public OutputSink {
 public:
  virtual void worker_started(std::uint32_t local_rank, pid_t pid) = 0;
  virtual void worker_exited(std::uint32_t local_rank, pid_t pid, const ExitStatus& status) = 0;
  virtual void worker_not_started(std::uint32_t local_rank, const Error& error) = 0;
  /// Called when `start` is complete.
  virtual void all_started() = 0;
};

/// The workers of this node, for one attempt or for several that some workers survive. Starts them, reads
/// their pipes, notices their ends, stops them. Loop thread only. The owner keeps the group alive
/// until `ended` has returned.
class WorkerGroup {
 public:
  using Clock = std::chrono::steady_clock;

  /// `input` is for the worker that wants it. `tree`: the processes that a kill reaches.
  WorkerGroup(asio::any_io_executor executor, WorkerEvents& events, WorkerStdin& input, TreeScope tree);
  ~WorkerGroup();

  /// Begins to start all workers; the loop continues while the kernel reads their programs. A worker that
  /// cannot be started is reported as if it had ended; the others continue. To replace ended workers, call
  /// again after `all_started` and `drop_ended`.
  void start(std::vector<WorkerSpec> specs);
  bool starting() const { return starting_; }

  /// Sends `signal` to each leader and its group, and KILL to the rest of their trees after `grace` (0: at
  /// once). A signal other than TERM may be ignored or come too late for a program that waits in a library,
  /// so TERM follows after four fifths of the grace. Workers that were not started yet are not started. Call
  /// again to shorten the grace.
  void stop(std::chrono::milliseconds grace, int signal);
  /// The signals before KILL go to the leaders alone.
  void stop_only_leaders() { only_leaders_ = true; }
  void signal_leaders(int number);
  /// For a worker that has ended: whether its end began after a signal by which this group ends workers. An
  /// end by SIGKILL did only if the group had sent SIGKILL, and not just a signal before it.
  bool ended_after_stop(std::uint32_t local_rank) const;
  /// Returns whether a SIGKILL of others ended the worker after terminate() or stop().
  bool ended_by_late_kill(std::uint32_t local_rank) const;

  void terminate(std::uint32_t local_rank);
  /// Unlike terminate(), it always reaches the worker's whole group.
  void kill(std::uint32_t local_rank);
  /// Kills all that these workers left: their groups, and processes in sessions of their own. Makes one pass
  /// over the node's processes for all of them. Waits, at most `limit`, only if an orphan's environment must
  /// show its worker.
  Awaitable<> kill_leftovers(std::vector<std::uint32_t> local_ranks, std::chrono::milliseconds limit);
  /// Waits until the output of ended workers is read, at most `limit`. Then reads what they left in their
  /// pipes, and what survivors have written, even without output room.
  Awaitable<> settled(std::chrono::milliseconds limit);
  /// Like `settled` for workers that have just ended, but at once, even if a process holds their pipes open.
  void drop_ended();
  void resume_output();  ///< call when there is output room again

  /// Waits until every leader is reaped and its pipes are read to their end. Does not wait for grandchildren
  /// that hold a pipe open: after a leader's end, its pipes are read until they are quiet. The caller then
  /// sweeps the tree.
  Awaitable<> ended();
  std::vector<pid_t> pids() const;  ///< of the leaders; only the group may reap them

 private:
  struct Worker;

  struct Launch;
  static Result<Launch> prepare(WorkerSpec& spec);
  static Awaitable<> start_all(WorkerGroup* group, std::vector<WorkerSpec> specs);
  static Awaitable<> start_batch(WorkerGroup* group, std::vector<WorkerSpec> specs);
  void watch(Launch launch, ChildProcess child);
  bool all_ended() const;
  static Awaitable<> watch_end(WorkerGroup* group, Worker* worker);
  static Awaitable<> kill_later(WorkerGroup* group);
  void end(Worker& worker, int signal);
  static void note_signal(Worker& worker, int signal);
  void kill_all();
  Awaitable<std::vector<KnownProcess>> find_orphans(std::vector<std::uint32_t> local_ranks,
                                                    Clock::time_point until) const;
  Worker* find(std::uint32_t local_rank) const;
  void take_away_ended(std::uint32_t local_rank);

  asio::any_io_executor executor_;
  WorkerEvents& events_;
  WorkerStdin& input_;
  TreeScope tree_;
  std::unique_ptr<SpawnPool> pool_;  ///< outlives the workers: their death signal is bound to its threads
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Worker>> replaced_;  ///< replaced workers whose tasks still run
  WorkerPipes pipes_;
  asio::steady_timer timer_;  ///< wakes kill_later
  Clock::time_point kill_at_ = Clock::time_point::max();
  std::optional<Clock::time_point> terminate_at_;  ///< when TERM follows `signal_`
  int signal_ = 0;                                 ///< of stop()
  bool only_leaders_ = false;
  TaskGroup tasks_;
  bool starting_ = false;
  bool stopping_ = false;
  bool killing_ = false;  ///< the grace is over
};

}  // namespace ddp::launcher
