#pragma once

#include <chrono>
#include <cstdint>
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
#include "launcher/agent_core/worker_processes.h"
#include "launcher/inspection/hang_monitor.h"
#include "launcher/inspection/tool_run.h"
#include "launcher/job/join_job.h"
#include "launcher/job/output_credit.h"
#include "launcher/keeper/attempt_tree.h"
#include "launcher/keeper/keeper.h"
#include "rendezvous/link/connection.h"
#include "rendezvous/membership/node_lease.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The process on a node that owns its workers for one job. It serves the master over the control link and
/// ends with that link. One loop thread; call only the constructor and run().
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
  const std::string& last_message() const { return last_message_; }

 private:
  using Clock = std::chrono::steady_clock;
  static std::uint64_t clock_ns();

  Awaitable<> serve();
  Awaitable<> heartbeat();
  Awaitable<> watch_keeper();
  Awaitable<> watch_signals();
  Awaitable<> finish_attempt();
  Awaitable<> leave_attempt(rendezvous::Revoke order);
  Awaitable<> probe(rendezvous::Probe request);
  Awaitable<> check(rendezvous::NodeCheck request);
  Awaitable<> feed_stdin();
  Awaitable<> go_down();
  Awaitable<> prepare(rendezvous::JobStart message);
  Awaitable<bool> predecessor_gone(std::string job_id, std::vector<std::uint32_t> pids);
  Awaitable<Result<NodeJob>> make_job(rendezvous::JobStart message);
  Awaitable<Result<EnvVars>> make_environment(rendezvous::JobStart job, bool quiet);

  void handle(const rendezvous::JobStart& message);
  void handle(const rendezvous::OpenStore& message);
  void handle(const rendezvous::Probe& message);
  void handle(const rendezvous::Spawn& message);
  void handle(const rendezvous::Stop& message);
  void handle(const rendezvous::Revoke& message);
  void handle(const rendezvous::Signal& message);
  void handle(const rendezvous::Leave& message);
  void handle(const rendezvous::Ping& message);
  void handle(const rendezvous::Credit& message);
  void handle(const rendezvous::MasterAsleep& message);
  void handle(const rendezvous::Stdin& message);
  void handle(const rendezvous::Inspect& message);
  void handle(const rendezvous::NodeCheck& message);
  template <class M>
  void handle(const M&) {}  ///< ignores messages of the other direction

  void worker_started(std::uint32_t local, pid_t pid) override;
  void worker_exited(std::uint32_t local, pid_t pid, const ExitStatus& status) override;
  void worker_not_started(std::uint32_t local, const Error& error) override;
  void all_started() override;
  /// Returns 0 while workers wait for an attempt, so that their output is sent as part of the next one.
  std::size_t output_room(std::uint8_t stream) const override { return waiting_ ? 0 : credit_.room(stream); }
  std::span<char> output_space(std::size_t size) override { return link_.output_space(size); }
  Move move_output(std::uint32_t local, std::uint8_t stream, int pipe, std::size_t size) override;
  void worker_output(std::uint32_t local, std::uint8_t stream, std::span<const char> bytes) override;

  void worker_greeted(std::uint32_t local, const rendezvous::WorkerHello& hello) override;
  void worker_stepped(std::uint32_t local, const rendezvous::WorkerStep& step) override;
  void worker_in_trouble(std::uint32_t local, const rendezvous::WorkerTrouble& trouble) override;
  void worker_revoked(std::uint32_t local, const rendezvous::WorkerRevoked& answer) override;
  void worker_ready(std::uint32_t local) override;
  void worker_unlinked(std::uint32_t local) override;
  void worker_misbehaved(std::uint32_t local, std::string words) override;

  bool begin_attempt(const rendezvous::Spawn& message);
  bool give_up_next(std::uint32_t attempt);
  std::vector<std::string> expect_workers(std::uint32_t count);
  void keep_error_files(std::vector<std::string> files);
  Awaitable<> remove_files(std::vector<std::string> files);
  void report_survivors();
  void order_attempt(const rendezvous::Spawn& spawn, std::uint32_t local);
  void ask_to_leave(const rendezvous::Revoke& order);
  void kill_the_late(const rendezvous::Revoke& order);
  void kill_worker(std::uint32_t local, std::string why);
  void worker_gone(std::uint32_t local);
  void notify_survivors();
  void report_collectives();
  void monitor_hangs(std::vector<WorkerSpec>& workers);
  std::vector<pid_t> children() const;
  void begin_preparing(const rendezvous::JobStart& job);
  void accept(const rendezvous::JobStart& message, Result<NodeJob> job, bool predecessor_gone);
  void refuse(const Error& error);
  void renew_lease();
  bool master_lost(bool late) const;
  void lose_master(std::string_view why);
  void resign(std::string why, int signal = 0);

  asio::io_context& loop_;
  Options options_;
  KeeperLink& keeper_;
  rendezvous::Connection link_;
  std::optional<NodeJob> job_;
  NodeStore store_;
  std::unique_ptr<WorkerGroup> workers_;
  std::unique_ptr<WorkerLink> worker_link_;  ///< null: it could not be made
  WorkerProcesses processes_;
  std::uint32_t first_rank_ = 0;  ///< first rank of this node in the attempt
  std::uint32_t ranks_ = 0;
  bool leaving_attempt_ = false;                 ///< a revoke is being carried out
  bool waiting_ = false;                         ///< a revoke is done: the survivors have no attempt
  std::optional<rendezvous::Spawn> next_spawn_;  ///< came while the last workers were being ended
  NodeSetup setup_;
  BlockingCalls disk_;      ///< reads the job's paths on this node's disks
  ToolStop tools_;          ///< of the running check
  bool preparing_ = false;  ///< disk checks, --setup or a check are running
  AttemptTree tree_;
  std::unique_ptr<HangMonitor> hang_monitor_;  ///< of the attempt; null: hangs are not monitored
  std::chrono::milliseconds hang_timeout_{0};
  EvidenceCollector evidence_;
  FlightRecorderBoard collectives_;
  std::vector<std::string> error_files_;  ///< of the attempt's workers; most never exist
  std::uint32_t attempt_ = 0;
  OutputCredit credit_;
  std::string stdin_pending_;
  bool stdin_ended_ = false;
  bool stdin_busy_ = false;
  bool leaving_ = false;  ///< the end was ordered or is forced; nothing new starts
  bool attempt_running_ = false;
  bool down_ = false;  ///< all workers have ended; only the last messages remain
  std::chrono::milliseconds patience_{15'000};
  std::chrono::milliseconds link_grace_{5'000};
  rendezvous::NodeLease lease_;  ///< of the workers; by CLOCK_BOOTTIME
  rendezvous::NodeLease::Time accepted_at_{0};
  bool local_ = false;   ///< on the master's machine
  bool leased_ = false;  ///< the keeper enforces the lease on the workers
  asio::steady_timer tick_;
  asio::steady_timer attempt_over_;  ///< cancelled when the attempt, --setup or a check has ended
  asio::steady_timer revoke_step_;   ///< expires at a revoke's deadline; cancelled at each answer
  asio::posix::stream_descriptor keeper_fd_;
  asio::signal_set signals_;
  int exit_code_ = 0;
  std::string last_message_;
};

}  // namespace ddp::launcher
