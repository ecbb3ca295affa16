#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "launcher/control/control_socket.h"
#include "launcher/control/http_server.h"
#include "launcher/job/job_spec.h"
#include "launcher/lines/line_watch.h"
#include "launcher/master/hook_runner.h"
#include "launcher/master/master_links.h"
#include "launcher/master/user_input.h"
#include "launcher/master/worker_queries.h"
#include "launcher/output/console.h"
#include "launcher/output/job_dir.h"
#include "launcher/output/job_writer.h"
#include "launcher/output/merged_output.h"
#include "launcher/report/job_progress.h"
#include "launcher/report/job_status.h"
#include "launcher/report/report_json.h"
#include "launcher/report/sample_history.h"
#include "launcher/supervisor/supervisor.h"
#include "launcher/telemetry/otlp.h"
#include "launcher/telemetry/tensorboard.h"

namespace ddp::launcher {

/// The process that owns the job. It starts the agents, carries out the Supervisor's decisions, shows the
/// workers' output, and reports. It has one loop thread and the console's writer. Callers use only the
/// constructor and run().
class Master final : private NodeEvents {
 public:
  struct Options {
    remote::FanOutOptions start;                  ///< of the agents
    std::optional<ControlSocket> control;         ///< where other processes ask about the job
    std::string run;                              ///< tells runs of one job id apart
    std::optional<MetricsServer> metrics;         ///< where everybody may read the metrics
    std::chrono::milliseconds metrics_linger{0};  ///< for how long they are served after the end
    std::optional<OtlpTarget> otlp;               ///< a collector that gets metrics and spans
    JobWriter::FirstTask first_task;              ///< called on the thread of the job's files
    std::function<void()> all_run;                ///< called once, when all ranks run; empty: not wanted
    std::vector<std::string> warnings;            ///< of the start, to be said
  };

  /// All references outlive the master.
  Master(asio::io_context& loop, const JobSpec& spec, Options options, remote::Transport& remote,
         remote::Transport& local, JobDir job_dir);
  ~Master();
  Master(const Master&) = delete;
  Master& operator=(const Master&) = delete;

  /// Runs the job to its end and returns the exit code (docs/users/exit_codes.md). All output has been shown
  /// by then.
  int run();

  /// Shows a line for the user from the code that reaches the nodes. Never waits. Call it on the loop thread
  /// while run() runs.
  void note(std::string_view text) { say(text); }

 private:
  using Clock = std::chrono::steady_clock;

  void agent_started(NodeLink& node, const remote::StartedAgent& agent) override;
  void start_failed(std::size_t node, Error why) override;
  Result<> on_message(NodeLink& node, const rendezvous::Message& message) override;
  void all_taken(NodeLink& node) override;
  void bytes_arrived(const NodeLink& node) override;
  void reachable(const NodeLink& node) override;
  void agent_errors(const std::string& lines) override;
  void link_broken(const NodeLink& node, const Error& why) override;
  void link_gone(NodeLink& node, NodeLink::LinkEnd end) override;
  void before_pings() override;
  void node_swept(std::size_t node, std::uint32_t incarnation, const Result<SweptHost>& swept) override;
  Awaitable<> watch_signals();

  JobStatus status() const;
  void stop(bool now, const std::string& by);
  void answer_hang();
  ControlHandlers control_handlers();
  void step(const job::Event& event);
  void carry_out(job::Actions actions);
  void show_waiting(const job::Waiting& waiting);
  void note_start_steps();
  void feed_stdin();
  void repeat_on_terminal(int looks = 10);
  void arm_deadline();
  Result<> handle_output(NodeLink& node, const rendezvous::Output& output);
  Result<> handle_steps(const NodeLink& node, const rendezvous::WorkerSteps& message);
  void watch_lines(const NodeLink& node, const rendezvous::Output& output, Supervisor::Time written);
  void name_slow_ranks(Supervisor::Time now);
  void handle_notice(NodeLink& node, const rendezvous::Notice& notice);
  LineSource source_of(std::uint32_t rank) const;
  static Supervisor::Time happened(const NodeLink& node, const rendezvous::Message& message);
  void give_credit(NodeLink& node);
  void give_all_credit();
  void warn_of_lost_output();
  void sweep(std::size_t node);
  std::vector<std::uint32_t> live_keepers_beside(std::size_t node) const;
  void leave_terminal();
  void end_tasks();
  /// Says it to the user. A text that begins with "warning: " is kept for the job's status and report.
  void say(std::string_view text);
  void record(const JournalEvent& event);
  void say_host(const NodeLink& node, std::string_view line);
  JobFacts facts() const;
  /// Returns the lines that the job adds to the host history; usually none.
  std::string history_lines(const JobFacts& known) const;
  void keep_last_output(int first_rank, int count);
  ExitReport show_report();
  void settle_files(const ExitReport& report);
  void finish_hooks(const ExitReport& report);
  void serve_last_metrics(const ExitReport& report);
  void start_otlp(OtlpTarget target);
  void publish_second();
  void record_point();
  void note_tensorboard();
  void send_otlp_metrics();

  asio::io_context& loop_;
  const JobSpec& spec_;
  const std::chrono::nanoseconds began_;
  const std::chrono::system_clock::time_point began_at_;  ///< the same by the wall clock
  const std::string run_;
  const std::shared_ptr<JobWriter> files_;
  const JobLog log_;
  Console console_;
  MergedOutput output_;
  Supervisor supervisor_;
  MasterLinks nodes_;
  MasterLinks::Link stdin_link_;        ///< the node that gets the launcher's stdin
  MasterLinks::Link stdin_ended_link_;  ///< a later rank 0's node, which got end of file
  asio::steady_timer deadline_;
  asio::steady_timer terminal_timer_;
  std::string last_said_;
  std::uint64_t journal_id_ = 0;  ///< of the last event in the journal
  asio::signal_set signals_;
  StdinFeed stdin_;
  WorkerQueries queries_;
  std::vector<ControlHandlers::HangAnswered> hang_askers_;
  HookRunner hooks_;
  std::optional<ControlServer> control_;
  std::optional<MetricsServer> metrics_;
  std::chrono::milliseconds metrics_linger_;
  std::optional<OtlpSender> otlp_;
  std::optional<AttemptSpans> spans_;     ///< set with otlp_
  std::chrono::nanoseconds otlp_due_{0};  ///< of the next metrics
  TensorBoardEvents tensorboard_;
  std::optional<JobStatus::End> job_end_;  ///< set by show_report
  std::set<std::string> kept_notes_;       ///< remote::kKeptElsewhere and kNotUsed lines that came
  bool output_lost_ = false;
  std::uint64_t output_bytes_ = 0;  ///< that the workers wrote
  std::optional<LineWatch> watch_;  ///< with --watch
  JobProgress progress_;
  Supervisor::Time slow_checked_at_{0};
  SampleHistory history_;
  std::deque<std::string> warnings_;  ///< the latest kMostWarnings
  std::function<void()> all_run_;
};

}  // namespace ddp::launcher
