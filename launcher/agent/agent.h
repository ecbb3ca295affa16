#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/clock.h"
#include "launcher/agent/evidence_collector.h"
#include "launcher/agent/job_preparation.h"
#include "launcher/agent/node_facts.h"
#include "launcher/agent/node_job.h"
#include "launcher/agent/node_store.h"
#include "launcher/agent/usage_sampler.h"
#include "launcher/agent/worker_group.h"
#include "launcher/agent/worker_listener.h"
#include "launcher/agent/worker_pipes.h"
#include "launcher/agent_core/agent_core.h"
#include "launcher/inspection/hang_monitor.h"
#include "launcher/inspection/process_inspection.h"
#include "launcher/job/job_spec.h"
#include "launcher/job/output_credit.h"
#include "launcher/keeper/attempt_tree.h"
#include "launcher/keeper/keeper.h"
#include "launcher/keeper/process_table.h"
#include "launcher/keeper/process_tree.h"
#include "rendezvous/link/connection.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Answers the master's queries about running workers: their stacks, and commands in a worker's environment.
/// Its children end with the attempt at the latest. Loop thread; the owner keeps the object alive until
/// `idle` has returned.
class NodeQueries {
 public:
  using SendAnswer = std::function<void(const rendezvous::QueryAnswer&)>;
  using Leaders = InspectedWorkers;  ///< the live ranks

  static constexpr std::size_t kMostQueries = 8;
  static constexpr std::size_t kCommandText = 1u << 20;  ///< bytes of a command's output; the rest is dropped

  NodeQueries(asio::any_io_executor executor, SendAnswer send)
      : executor_(executor), send_(std::move(send)), tasks_(executor) {}

  /// An attempt begins. `workers` by local rank; `first_rank` is that of the first one.
  void begin(std::uint32_t first_rank, const std::vector<WorkerSpec>& workers, TreeScope tree);
  void start(const rendezvous::Query& query, Leaders leaders);
  void cancel(std::uint32_t request);
  /// The attempt ends: ends all queries. None starts until `begin`.
  void stop();
  Awaitable<> idle() { return tasks_.all_ends(); }
  /// Children that no other component may reap.
  std::vector<pid_t> pids() const;

 private:
  struct RunningQuery {
    std::set<pid_t> pids;
    ToolStop stop;
    std::unique_ptr<ProcessInspection> inspection;  ///< null: a command
  };
  static Awaitable<> run_command(NodeQueries* self, rendezvous::Query query);
  static Awaitable<> run_inspection(NodeQueries* self, std::uint32_t request);
  static void end(RunningQuery& running);
  void answer(std::uint32_t request, std::uint32_t rank, std::string text);
  void refuse(std::uint32_t request, std::string trouble);

  asio::any_io_executor executor_;
  SendAnswer send_;
  std::map<std::uint32_t, ChildSpec> workers_;  ///< by rank
  TreeScope tree_;
  std::map<std::uint32_t, RunningQuery> running_;  ///< by request
  bool stopped_ = true;
  TaskGroup tasks_;
};

/// Returns the node's CLOCK_MONOTONIC, as messages have it.
inline std::uint64_t clock_ns() {
  return static_cast<std::uint64_t>(steady_now().count());
}

/// The process on a node that owns its workers for one job. It serves the master over the control link and
/// ends with that link. AgentCore decides; this class is its driver: it passes the master's messages and what
/// the workers do to the core, and carries out what the core decides. JobPreparation acts before the workers,
/// WorkerGroup starts and ends them. One loop thread.
class Agent final : public WorkerEvents, public WorkerMessageEvents {
 public:
  struct Options {
    std::string directory;  ///< directory of this program and of `train`
    NodeFacts facts;
    std::optional<JoinJob> own =
        {};  ///< set: this node was started by itself and joins with a job of its own
  };

  /// `stream` is the control link after the hello line. `keeper` must outlive the agent.
  Agent(asio::io_context& loop, std::unique_ptr<ByteStream> stream, KeeperSocket& keeper, Options options);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Serves until the master sends Leave, the link or the keeper is lost, or a signal arrives. No worker is
  /// alive when it returns. Returns the exit code: 0 after Leave, or the whole job's code for a node with a
  /// job of its own.
  int run();
  /// The part of run() before the loop runs. All tasks have ended when the loop has no work left.
  void begin();
  /// The master's text about the job's end from Leave; else why this agent had to leave, if known.
  const std::string& last_message() const { return core_.last_message(); }

 private:
  using Clock = std::chrono::steady_clock;

  Awaitable<> serve();
  Awaitable<> heartbeat();
  Awaitable<> watch_keeper();
  std::string keeper_died() const;
  Awaitable<> watch_signals();
  Awaitable<> shut_down();
  void remove_sockets();
  void reap_orphans();

  // ---- the core: its events, and its actions
  void feed(const node::Event& event);
  void arm_timer();
  void perform(const node::Send& action) { link_.send(action.message); }
  void perform(const node::OpenStore& action);
  void perform(const node::PrepareAttempt& action);
  void perform(const node::StartWorkers& action);
  void perform(const node::OrderAttempt& action);
  void perform(const node::OrderLeave& action) { worker_listener_->revoke(action.local, action.order); }
  void perform(const node::TerminateWorker& action) { group_->terminate(action.local); }
  void perform(const node::KillWorker& action) { group_->kill(action.local); }
  void perform(const node::KillLeftovers& action) { revoke_tasks_.start(kill_leftovers(action.locals)); }
  void perform(const node::ReadOutput&) { revoke_tasks_.start(read_output()); }
  void perform(const node::ReportLosses&) { revoke_tasks_.start(report_losses()); }
  void perform(const node::StopWorkers& action);
  void perform(const node::CleanUp&) { spawn(loop_.get_executor(), clean_up()); }
  void perform(const node::SetLease& action);
  void perform(const node::RenewKeeper&) { keeper_.renew(); }
  void perform(const node::CloseLink& action);
  void perform(const node::StopPreparing&) { preparation_.stop(); }
  void perform(const node::Quit&) { spawn(loop_.get_executor(), shut_down()); }

  // ---- messages of the master
  void handle(const rendezvous::JobStart& message);
  void handle(const rendezvous::NodeCheck& message);
  void handle(const rendezvous::Probe& message);
  void handle(const rendezvous::Spawn& message);
  void handle(const rendezvous::Ping& message);
  void handle(const rendezvous::OpenStore& message) { feed(message); }
  void handle(const rendezvous::Revoke& message) { feed(message); }
  void handle(const rendezvous::Stop& message) { feed(message); }
  void handle(const rendezvous::Leave& message) { feed(message); }
  void handle(const rendezvous::Signal& message);
  void handle(const rendezvous::Credit& message);
  void handle(const rendezvous::Stdin& message) { stdin_.add(message.data); }
  void handle(const rendezvous::Inspect& message);
  void handle(const rendezvous::Query& message);
  void handle(const rendezvous::CancelQuery& message) { queries_.cancel(message.request); }
  template <class M>
  void handle(const M&) {}  ///< ignores messages of the other direction

  Awaitable<> probe(rendezvous::Probe request);
  void begin_preparing(const rendezvous::JobStart& job);
  void accept(const rendezvous::JobStart& order, NodeJob job, bool predecessor_gone);
  void refuse(const Error& error);

  // ---- events of workers
  void worker_started(std::uint32_t local, pid_t pid) override;
  void worker_exited(std::uint32_t local, pid_t pid, const ExitStatus& status) override;
  void worker_not_started(std::uint32_t local, const Error& error) override;
  void all_started() override;
  std::size_t output_room(std::uint8_t stream) const override;
  std::span<char> output_space(std::size_t size) override { return link_.output_space(size); }
  void worker_output(std::uint32_t local, std::uint8_t stream, std::span<const char> bytes) override;

  void worker_said(std::uint32_t local, const rendezvous::WorkerHello& hello) override;
  void worker_said(std::uint32_t local, const rendezvous::WorkerStep& step) override;
  void worker_reported(std::uint32_t local, const rendezvous::WorkerStep& step) override;
  void worker_said(std::uint32_t local, const rendezvous::WorkerTrouble& trouble) override;
  void worker_said(std::uint32_t local, const rendezvous::WorkerRevoked& answer) override;
  void worker_said(std::uint32_t local, const rendezvous::WorkerReady&) override {
    feed(node::WorkerReady{local});
  }
  void worker_unlinked(std::uint32_t local) override;
  void worker_said(std::uint32_t local, const rendezvous::WorkerMisbehaved& misbehavior) override;

  // ---- an attempt
  void note_setup_helpers();
  std::vector<WorkerSockets> expect_workers(std::uint32_t count);
  std::string python_hook();
  InspectedWorker inspected(std::uint32_t local, pid_t pid) const;
  Awaitable<> watch_workers();
  Awaitable<> kill_leftovers(std::vector<std::uint32_t> locals);
  Awaitable<> read_output();
  Awaitable<> stop_tools();
  Awaitable<> report_losses();
  Awaitable<> clean_up();
  Awaitable<> collect_evidence();
  void report_collectives();
  std::string take_worker_end(std::uint32_t local, const ExitStatus& status);
  void report_last_collectives(std::uint32_t local, const std::string& end);
  void send_steps();
  std::uint32_t rank_of(std::uint32_t local) const { return core_.attempt().first_rank + local; }

  asio::io_context& loop_;
  Options options_;
  KeeperSocket& keeper_;
  rendezvous::Connection link_;
  AgentCore core_;
  std::deque<node::Action> actions_;  ///< decided, but not carried out
  asio::steady_timer core_timer_;     ///< for the core's deadline
  NodeStore store_;
  BlockingCalls disk_;  ///< for the job's paths on this node's disks
  JobPreparation preparation_;
  std::optional<NodeJob> job_;
  OutputCredit credit_;
  WorkerStdin stdin_;
  std::unique_ptr<WorkerGroup> group_;               ///< null before the first attempt
  std::vector<WorkerSpec> prepared_;                 ///< the workers that StartWorkers starts
  std::unique_ptr<WorkerListener> worker_listener_;  ///< null: it could not be made
  TaskGroup revoke_tasks_;  ///< tasks that use the workers and are no part of their end
  AttemptTree tree_;
  HangMonitor hang_monitor_;
  std::map<std::uint32_t, rendezvous::WorkerStep> new_steps_;  ///< by rank: not yet sent to the master
  std::map<std::uint32_t, StepTimer> step_timers_;             ///< by rank, of this attempt
  asio::steady_timer steps_timer_;                             ///< runs while there are any
  NodeQueries queries_;
  UsageSampler usage_;
  EvidenceCollector evidence_;
  FlightRecorderBoard collectives_;
  bool stop_leaders_ = false;               ///< JobStart::stop_leaders
  bool runs_setup_ = false;                 ///< the job has scripts of --setup
  bool directory_hangs_ = false;            ///< the disk of the private directory did not answer once
  std::vector<ProcessInfo> setup_helpers_;  ///< programs that they left, until the user knows of their end
  bool down_ = false;                       ///< all workers have ended; only the last messages remain
  asio::steady_timer tick_;
  asio::posix::stream_descriptor keeper_fd_;
  asio::signal_set signals_;
};

}  // namespace ddp::launcher
