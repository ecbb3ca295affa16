#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/asio.h"
#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"
#include "launcher/master/node_link.h"
#include "remote/start/fan_out.h"

namespace ddp::launcher {

/// The driver of a CheckRun. It starts the agents as a job would, carries the messages, and measures the
/// clocks. It never starts a worker. One loop thread; callers use only the constructor and run().
class CheckMaster {
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

  Awaitable<> start_agents();
  void on_started(std::size_t index, Result<remote::StartedAgent> outcome);
  static Awaitable<> read_link(CheckMaster* self, NodeLink* node);
  static Awaitable<> read_errors(CheckMaster* self, NodeLink* node);
  void node_gone(NodeLink& node, Error why);
  Awaitable<> watch_signals();
  Awaitable<> ping_nodes();
  Result<> take_messages(NodeLink& node);
  void take(NodeLink& node, const rendezvous::Message& message);
  void step(const CheckRun::Event& event);
  void carry_out(CheckRun::Actions actions);
  void arm_deadline();
  void measure_clocks(CheckResult& result) const;
  void end_tasks();
  void start_task(Awaitable<> task);

  asio::io_context& loop_;
  const JobSpec& spec_;
  ShowLines show_lines_;
  CheckRun run_;
  remote::FanOut fan_out_;
  std::vector<std::unique_ptr<NodeLink>> nodes_;
  asio::steady_timer deadline_;
  asio::steady_timer ping_timer_;
  asio::signal_set signals_;
  std::uint64_t ping_sequence_ = 0;
};

}  // namespace ddp::launcher
