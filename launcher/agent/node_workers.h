#pragma once

#include <sys/types.h>

#include <cstdint>
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
#include "base/tool_run.h"
#include "launcher/agent/evidence.h"
#include "launcher/agent/node_job.h"
#include "launcher/agent/worker_group.h"
#include "launcher/agent/worker_link.h"
#include "launcher/agent/worker_pipes.h"
#include "launcher/agent_core/agent_core.h"
#include "launcher/inspection/hang_monitor.h"
#include "launcher/inspection/process_inspection.h"
#include "launcher/job/output_credit.h"
#include "launcher/keeper/attempt_tree.h"
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
  using Leaders = std::map<std::uint32_t, pid_t>;  ///< the live ranks

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
  std::map<std::uint32_t, WorkerSpec> workers_;  ///< by rank
  TreeScope tree_;
  std::map<std::uint32_t, RunningQuery> running_;  ///< by request
  bool stopped_ = true;
  TaskGroup tasks_;
};

/// Returns the node's CLOCK_MONOTONIC, as messages have it.
inline std::uint64_t clock_ns() {
  return static_cast<std::uint64_t>(steady_now().count());
}

/// The workers of this node, and what they need: sockets, control group, stdin, hang monitor, evidence. It
/// carries out the actions of an AgentCore that concern them, and turns what they do into its events. Loop
/// thread; the owner keeps the object alive until the loop has ended.
class NodeWorkers final : public WorkerEvents, public WorkerLinkEvents {
 public:
  using Feed = std::function<void(const node::Event&)>;

  /// All references outlive the object. `cores`: physical ones of this node. `feed` passes an event to `core`
  /// and carries out what it decides.
  NodeWorkers(asio::any_io_executor executor, const AgentCore& core, rendezvous::Connection& link,
              KeeperLink& keeper, BlockingCalls& disk, int cores, Feed feed);

  /// Call before the first action, with the order from which `job` was made.
  void set_job(NodeJob job, const rendezvous::JobStart& order);

  void perform(const node::PrepareAttempt& action);
  void perform(const node::StartWorkers& action);
  void perform(const node::OrderAttempt& action);
  void perform(const node::OrderLeave& action) { worker_link_->revoke(action.local, action.order); }
  void perform(const node::TerminateWorker& action) { group_->terminate(action.local); }
  void perform(const node::KillWorker& action) { group_->kill(action.local); }
  void perform(const node::KillLeftovers& action) { revoke_tasks_.start(kill_leftovers(action.locals)); }
  void perform(const node::ReadOutput&) { revoke_tasks_.start(read_output()); }
  void perform(const node::ReportLosses&) { revoke_tasks_.start(report_losses()); }
  void perform(const node::StopWorkers& action);
  void perform(const node::CleanUp&) { spawn(executor_, clean_up()); }

  void handle(const rendezvous::Signal& message);
  void handle(const rendezvous::Credit& message);
  void handle(const rendezvous::Stdin& message) { stdin_.add(message.data); }
  void handle(const rendezvous::Inspect& message);
  void handle(const rendezvous::Query& message);
  void handle(const rendezvous::CancelQuery& message) { queries_.cancel(message.request); }

  /// Call before the core gets a Spawn: the output of ended workers belongs to the previous attempt.
  void drop_ended();
  /// Call when the link is closed. No output is sent any more, but the pipes are drained, so that no worker
  /// hangs in a write.
  void lift_credit();
  /// Orphans of workers would stay zombies otherwise.
  void reap_orphans();
  /// Call when the last worker has ended. The keeper then has no sockets to remove.
  void remove_sockets();

 private:
  void worker_started(std::uint32_t local, pid_t pid) override;
  void worker_exited(std::uint32_t local, pid_t pid, const ExitStatus& status) override;
  void worker_not_started(std::uint32_t local, const Error& error) override;
  void all_started() override;
  std::size_t output_room(std::uint8_t stream) const override;
  std::span<char> output_space(std::size_t size) override { return link_.output_space(size); }
  void worker_output(std::uint32_t local, std::uint8_t stream, std::span<const char> bytes) override;

  void worker_greeted(std::uint32_t local, const rendezvous::WorkerHello& hello) override;
  void worker_stepped(std::uint32_t local, const rendezvous::WorkerStep& step) override;
  void worker_reported(std::uint32_t local, const rendezvous::WorkerStep& step) override;
  void worker_in_trouble(std::uint32_t local, const rendezvous::WorkerTrouble& trouble) override;
  void worker_revoked(std::uint32_t local, const rendezvous::WorkerRevoked& answer) override;
  void worker_ready(std::uint32_t local) override { feed_(node::WorkerReady{local}); }
  void worker_unlinked(std::uint32_t local) override;
  void worker_misbehaved(std::uint32_t local, std::string words) override;

  void send_steps();
  std::uint32_t rank_of(std::uint32_t local) const { return core_.attempt().first_rank + local; }
  std::vector<WorkerSockets> expect_workers(std::uint32_t count);
  Awaitable<> watch_workers();
  Awaitable<> kill_leftovers(std::vector<std::uint32_t> locals);
  Awaitable<> read_output();
  Awaitable<> stop_tools();
  Awaitable<> report_losses();
  Awaitable<> clean_up();
  Awaitable<> collect_evidence();
  void report_collectives();
  void note_setup_helpers();

  asio::any_io_executor executor_;
  const AgentCore& core_;
  rendezvous::Connection& link_;
  KeeperLink& keeper_;
  int cores_;
  Feed feed_;
  std::optional<NodeJob> job_;
  OutputCredit credit_;
  WorkerStdin stdin_;
  std::unique_ptr<WorkerGroup> group_;       ///< null before the first attempt
  std::vector<WorkerSpec> prepared_;         ///< the workers that StartWorkers starts
  std::unique_ptr<WorkerLink> worker_link_;  ///< null: it could not be made
  TaskGroup revoke_tasks_;                   ///< tasks that use the workers and are no part of their end
  AttemptTree tree_;
  HangMonitor hang_monitor_;
  std::map<std::uint32_t, rendezvous::WorkerStep> new_steps_;  ///< by rank: not yet sent to the master
  std::map<std::uint32_t, StepTimer> step_timers_;             ///< by rank, of this attempt
  asio::steady_timer steps_timer_;                             ///< runs while there are any
  NodeQueries queries_;
  EvidenceCollector evidence_;
  FlightRecorderBoard collectives_;
  bool stop_leaders_ = false;               ///< JobStart::stop_leaders
  bool runs_setup_ = false;                 ///< the job has scripts of --setup
  std::vector<ProcessInfo> setup_helpers_;  ///< programs that they left, until the user knows of their end
};

}  // namespace ddp::launcher
