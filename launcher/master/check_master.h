#pragma once

#include <chrono>
#include <functional>
#include <string_view>

#include "base/asio.h"
#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"
#include "launcher/master/master_links.h"
#include "remote/start/fan_out.h"

namespace ddp::launcher {

/// The driver of a CheckRun. It starts the agents as a job would, carries the messages, and measures the
/// clocks. It never starts a worker. One loop thread; callers use only the constructor and run().
class CheckMaster final : private NodeEvents {
 public:
  /// Receives the output of hosts and agents as whole lines, each prefixed with the host's name; for stderr.
  using ShowLines = std::function<void(std::string_view lines)>;

  /// Takes the `options` of a job, but sets their deadline itself. References must outlive this object.
  CheckMaster(asio::io_context& loop, const JobSpec& spec, CheckRun::CheckScope scope,
              remote::RemoteShell& remote, remote::RemoteShell& local, remote::FanOutOptions options,
              ShowLines say);
  ~CheckMaster();
  CheckMaster(const CheckMaster&) = delete;
  CheckMaster& operator=(const CheckMaster&) = delete;

  /// Asks all hosts and returns their answers, at most a few seconds for goodbyes after --start-timeout.
  CheckResult run();

 private:
  using Clock = std::chrono::steady_clock;

  void agent_started(NodeLink& node, const remote::StartedAgent& agent) override;
  void start_failed(std::size_t node, Error why) override;
  Result<> take(NodeLink& node, const rendezvous::Message& message) override;
  void agent_errors(const std::string& lines) override;
  void link_gone(NodeLink& node, NodeLink::LinkEnd end) override;
  Awaitable<> watch_signals();
  Awaitable<> report_waiting();
  void note_start_steps();
  void step(const CheckRun::Event& event);
  void carry_out(CheckRun::Actions actions);
  void arm_deadline();
  void measure_clocks(CheckResult& result) const;
  void end_tasks();

  asio::io_context& loop_;
  const JobSpec& spec_;
  ShowLines show_lines_;
  CheckRun run_;
  MasterLinks nodes_;
  asio::steady_timer deadline_;
  asio::steady_timer waiting_timer_;
  asio::signal_set signals_;
};

}  // namespace ddp::launcher
