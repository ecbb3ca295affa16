#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/byte_stream.h"
#include "launcher/agent/evidence.h"
#include "launcher/agent/flight_recorder_board.h"
#include "launcher/agent/node_facts.h"
#include "launcher/agent/node_job.h"
#include "launcher/agent/node_setup.h"
#include "launcher/agent/node_store.h"
#include "launcher/agent/worker_group.h"
#include "launcher/agent/worker_link.h"
#include "launcher/agent_core/agent_core.h"
#include "launcher/inspection/hang_monitor.h"
#include "launcher/inspection/task_group.h"
#include "launcher/inspection/tool_run.h"
#include "launcher/job/join_job.h"
#include "launcher/job/output_credit.h"
#include "launcher/keeper/attempt_tree.h"
#include "launcher/keeper/keeper_link.h"
#include "rendezvous/link/connection.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The process on a node that owns its workers for one job. It serves the master over the control link and
/// ends with that link. AgentCore decides; this class reads, starts, kills and waits. One loop thread; call
/// only the constructor and run().
class Agent final : public WorkerEvents, public WorkerLinkEvents {
 public:
  struct Options {
    std::string directory;  ///< directory of this program and of `train`
    NodeFacts facts;
    std::optional<JoinJob> own =
        {};  ///< set: this node was started by itself and joins with a job of its own
  };

  /// `stream` is the control link after the hello line. `keeper` must outlive the agent.
  Agent(asio::io_context& loop, std::unique_ptr<ByteStream> stream, KeeperLink& keeper, Options options);
  ~Agent() override;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Serves until the master sends Leave, the link or the keeper is lost, or a signal arrives. No worker is
  /// alive when it returns. Returns the exit code: 0 after Leave, or the whole job's code for a node with a
  /// job of its own.
  int run();
  /// The master's text about the job's end from Leave; else why this agent had to leave, if known.
  const std::string& last_message() const { return core_.last_message(); }

 private:
  using Clock = std::chrono::steady_clock;
  static std::uint64_t clock_ns();

  Awaitable<> serve();
  Awaitable<> heartbeat();
  Awaitable<> watch_keeper();
  std::string keeper_died() const;
  Awaitable<> watch_signals();
  Awaitable<> go_down();

  // ---- the core: its events, and its actions
  void feed(const node::Event& event);
  void arm_timer();
  void perform(const node::Send& action) { link_.send(action.message); }
  void perform(const node::OpenStore& action);
  void perform(const node::PrepareAttempt& action);
  void perform(const node::StartWorkers& action);
  void perform(const node::OrderAttempt& action);
  void perform(const node::OrderLeave& action);
  void perform(const node::TerminateWorker& action) { workers_->terminate(action.local); }
  void perform(const node::KillWorker& action) { workers_->kill(action.local); }
  void perform(const node::KillLeftovers& action);
  void perform(const node::ReadOutput& action);
  void perform(const node::ReportLosses& action);
  void perform(const node::StopWorkers& action);
  void perform(const node::CleanUp& action);
  void perform(const node::SetLease& action);
  void perform(const node::RenewKeeper& action);
  void perform(const node::CloseLink& action);
  void perform(const node::StopPreparing& action);
  void perform(const node::Quit& action);

  // ---- messages of the master; the core takes the others
  void handle(const rendezvous::JobStart& message);
  void handle(const rendezvous::Probe& message);
  void handle(const rendezvous::Spawn& message);
  void handle(const rendezvous::Signal& message);
  void handle(const rendezvous::Ping& message);
  void handle(const rendezvous::Credit& message);
  void handle(const rendezvous::MasterAsleep& message);
  void handle(const rendezvous::Stdin& message);
  void handle(const rendezvous::Inspect& message);
  void handle(const rendezvous::NodeCheck& message);
  void handle(const rendezvous::OpenStore& message) { feed(message); }
  void handle(const rendezvous::Revoke& message) { feed(message); }
  void handle(const rendezvous::Stop& message) { feed(message); }
  void handle(const rendezvous::Leave& message) { feed(message); }
  template <class M>
  void handle(const M&) {}  ///< ignores messages of the other direction

  // ---- before the workers
  Awaitable<> probe(rendezvous::Probe request);
  Awaitable<> check(rendezvous::NodeCheck request);
  Awaitable<> prepare(rendezvous::JobStart message);
  Awaitable<bool> predecessor_gone(std::string job_id, std::vector<std::uint32_t> pids);
  Awaitable<Result<NodeJob>> make_job(rendezvous::JobStart message);
  Awaitable<Result<EnvVars>> make_environment(rendezvous::JobStart job, bool quiet);
  void begin_preparing(const rendezvous::JobStart& job);
  void accept(const rendezvous::JobStart& message, Result<NodeJob> job, bool predecessor_gone);
  void refuse(const Error& error);

  // ---- workers
  void worker_started(std::uint32_t local, pid_t pid) override;
  void worker_exited(std::uint32_t local, pid_t pid, const ExitStatus& status) override;
  void worker_not_started(std::uint32_t local, const Error& error) override;
  void all_started() override;
  std::size_t output_room(std::uint8_t stream) const override {
    return core_.holds_output() ? 0 : credit_.room(stream);
  }
  std::span<char> output_space(std::size_t size) override { return link_.output_space(size); }
  void worker_output(std::uint32_t local, std::uint8_t stream, std::span<const char> bytes) override;

  void worker_greeted(std::uint32_t local, const rendezvous::WorkerHello& hello) override;
  void worker_stepped(std::uint32_t local, const rendezvous::WorkerStep& step) override;
  void worker_in_trouble(std::uint32_t local, const rendezvous::WorkerTrouble& trouble) override;
  void worker_revoked(std::uint32_t local, const rendezvous::WorkerRevoked& answer) override;
  void worker_ready(std::uint32_t local) override;
  void worker_unlinked(std::uint32_t local) override;
  void worker_misbehaved(std::uint32_t local, std::string words) override;

  std::uint32_t rank_of(std::uint32_t local) const { return core_.attempt().first_rank + local; }
  std::vector<std::string> expect_workers(std::uint32_t count);
  void keep_error_files(std::vector<std::string> files);
  Awaitable<> remove_files(std::vector<std::string> files);
  Awaitable<> watch_workers();
  Awaitable<> kill_leftovers(std::vector<std::uint32_t> locals);
  Awaitable<> read_output();
  Awaitable<> report_losses();
  Awaitable<> clean_up();
  Awaitable<> collect_evidence();
  Awaitable<> stop_monitoring();
  Awaitable<> feed_stdin();
  void report_collectives();
  void monitor_hangs(std::vector<WorkerSpec>& workers);
  std::vector<pid_t> children() const;

  asio::io_context& loop_;
  Options options_;
  KeeperLink& keeper_;
  rendezvous::Connection link_;
  AgentCore core_;
  std::deque<node::Action> actions_;  ///< decided, but not carried out
  asio::steady_timer core_timer_;     ///< for the core's deadline
  std::optional<NodeJob> job_;
  NodeStore store_;
  std::unique_ptr<WorkerGroup> workers_;
  std::vector<WorkerSpec> prepared_;         ///< the workers that StartWorkers starts
  std::unique_ptr<WorkerLink> worker_link_;  ///< null: it could not be made
  TaskGroup revoke_tasks_;                   ///< tasks that use the workers and are no part of their end
  NodeSetup setup_;
  BlockingCalls disk_;   ///< reads the job's paths on this node's disks
  ToolStop tools_;       ///< of the running check
  TaskGroup preparing_;  ///< disk checks, --setup or a check
  AttemptTree tree_;
  std::unique_ptr<HangMonitor> hang_monitor_;  ///< of the attempt; null: hangs are not monitored
  std::chrono::milliseconds hang_timeout_{0};
  EvidenceCollector evidence_;
  FlightRecorderBoard collectives_;
  std::vector<std::string> error_files_;  ///< of the attempt's workers; most never exist
  OutputCredit credit_;
  struct {
    std::string pending;
    std::uint64_t given = 0;  ///< bytes that left `pending` for a worker
    std::uint64_t start = 0;  ///< `given` when the present rank 0 was started
    bool ended = false;       ///< the end of file is among what is pending
    bool busy = false;        ///< feed_stdin runs
  } stdin_;
  bool down_ = false;  ///< all workers have ended; only the last messages remain
  asio::steady_timer tick_;
  asio::posix::stream_descriptor keeper_fd_;
  asio::signal_set signals_;
};

}  // namespace ddp::launcher
