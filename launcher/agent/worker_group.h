#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/result.h"
#include "base/spawn_pool.h"
#include "launcher/agent/worker_pipes.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {

/// One worker to be started; everything is resolved.
struct WorkerSpec {
  std::uint32_t rank = 0;  ///< its number on this node: LOCAL_RANK
  std::string path;
  std::vector<std::string> argv;
  std::vector<std::string> env;
  std::string cwd;
  bool wants_stdin = false;  ///< gets a pipe; all others read /dev/null
  pid_t tracer = 0;          ///< whose children may attach a debugger to it; 0: nobody more than usual
};

/// What a group tells its owner, of workers by their number on the node; called on the loop thread.
class WorkerEvents : public OutputSink {
 public:
  virtual void worker_started(std::uint32_t rank, pid_t pid) = 0;
  virtual void worker_exited(std::uint32_t rank, pid_t pid, const ExitStatus& status) = 0;
  virtual void worker_not_started(std::uint32_t rank, const Error& error) = 0;
  /// The call of `start` is carried out.
  virtual void all_started() = 0;
};

/// The workers of this node, of one attempt or of several through which some live: starts them, reads their
/// pipes, notices their end by pidfd, stops them. Loop thread only. The owner keeps the group alive until
/// `ended` has returned.
class WorkerGroup {
 public:
  using Clock = std::chrono::steady_clock;

  /// `tree`: what a kill reaches.
  WorkerGroup(asio::any_io_executor executor, WorkerEvents& events, TreeScope tree);
  ~WorkerGroup();

  /// Begins to start all; the loop goes on while the kernel reads their programs. A worker that cannot be
  /// started is reported like one that ended; the others go on. May be called again for those that have
  /// ended, after `all_started` and `drop_ended`.
  void start(std::vector<WorkerSpec> specs);
  bool starting() const { return starting_; }

  /// TERM to each leader and its group now, KILL to what is left of their trees after `grace` (0: at once).
  /// Who has not begun to start does not. May be called again to shorten the grace.
  void stop(std::chrono::milliseconds grace);
  void signal_leaders(int number);
  bool stopping() const { return stopping_; }
  /// Of a worker that has ended: whether it had been sent SIGTERM by us before its end began.
  bool ended_after_stop(std::uint32_t rank) const;

  /// Whether its leader runs.
  bool is_alive(std::uint32_t rank) const;
  bool any_alive() const;
  std::vector<std::uint32_t> ended_ranks() const;  ///< those that nobody has replaced
  /// TERM to one worker's leader and group.
  void terminate(std::uint32_t rank);
  /// KILL to one worker's group.
  void kill(std::uint32_t rank);
  /// KILL to all that these workers left: their groups, and what they had in sessions of their own. One look
  /// at the processes of the node for all of them. Waits, at most `limit`, only where an orphan's environment
  /// has to tell whose it was.
  Awaitable<> kill_leftovers(std::vector<std::uint32_t> ranks, std::chrono::milliseconds limit);
  /// Waits until the output of those that have ended is read, at most `limit`; what they left in their pipes,
  /// and what the living have written until then, is read though there is no room for it.
  Awaitable<> settled(std::chrono::milliseconds limit);
  /// As `settled`, for those that have ended just now: at once, whatever holds their pipes open.
  void drop_ended();
  void resume_output();  ///< there is room for output again
  /// Writes to the stdin of the worker that has one; completes when the pipe took it. Empty: end of file.
  Awaitable<> write_stdin(std::string bytes);

  /// Waits until every leader is reaped and its pipes are read to their end. Grandchildren that hold a pipe
  /// open are not waited for: after a leader's end its pipes are read until they are quiet, then `ended` goes
  /// on, and the caller sweeps the tree.
  Awaitable<> ended();
  std::vector<pid_t> pids() const;  ///< of the leaders, which only the group may reap

 private:
  struct Worker;

  struct Launch;
  static Result<Launch> prepare(WorkerSpec spec);
  static Awaitable<> start_all(WorkerGroup* group, std::vector<WorkerSpec> specs);
  static Awaitable<> start_batch(WorkerGroup* group, std::vector<WorkerSpec> specs);
  void watch(Launch launch, ChildProcess child);
  bool all_ended() const;
  static Awaitable<> watch_end(WorkerGroup* group, Worker* worker);
  static Awaitable<> kill_later(WorkerGroup* group);
  void spawn_task(Awaitable<> task);
  static void terminate(Worker& worker);
  void kill_all();
  Awaitable<std::vector<KnownProcess>> find_orphans(std::vector<std::uint32_t> ranks,
                                                    Clock::time_point until) const;
  Worker* find(std::uint32_t rank) const;
  void take_away_ended(std::uint32_t rank);

  asio::any_io_executor executor_;
  WorkerEvents& events_;
  TreeScope tree_;
  std::unique_ptr<SpawnPool> pool_;  ///< outlives the workers: their death signal is bound to its threads
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Worker>> replaced_;  ///< whose tasks have not seen it yet
  WorkerPipes pipes_;
  asio::steady_timer kill_at_;    ///< when TERM becomes KILL
  asio::steady_timer task_done_;  ///< cancelled when a task has ended
  std::size_t tasks_ = 0;
  bool starting_ = false;
  bool stopping_ = false;
  bool killing_ = false;  ///< the grace is over
};

}  // namespace ddp::launcher
