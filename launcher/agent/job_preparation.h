#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/result.h"
#include "launcher/agent/node_job.h"
#include "launcher/agent/node_setup.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The steps of a node before it accepts a job: ends what a former agent of the job left, runs --setup, finds
/// the program and its directory. Answers `ddplaunch check` as well. Loop thread; the owner keeps the object
/// alive until the loop has ended.
class JobPreparation {
 public:
  using SendNotice = std::function<void(const rendezvous::Notice&)>;
  /// `predecessor_gone`: the agent that ran this job here before has left no process.
  using Prepared = std::function<void(Result<NodeJob> job, bool predecessor_gone)>;
  using Checked = std::function<void(const rendezvous::NodeChecked&)>;

  /// `disk` reads paths of the job, which may lie on a hanging disk. `directory`: that of this program.
  JobPreparation(asio::any_io_executor executor, BlockingCalls& disk, std::string directory,
                 SendNotice send_notice)
      : executor_(executor),
        disk_(disk),
        directory_(std::move(directory)),
        send_notice_(std::move(send_notice)),
        setup_(executor),
        tasks_(executor) {}

  /// Calls `done` at the end, unless stop() was called.
  void prepare(rendezvous::JobStart order, Prepared done);
  /// As prepare(). A request during another one has no effect.
  void check(rendezvous::NodeCheck request, Checked done);
  /// Ends waits for the disk, and the programs that run.
  void stop();
  Awaitable<> all_ends() { return tasks_.all_ends(); }

 private:
  Awaitable<> run(rendezvous::JobStart order, Prepared done);
  Awaitable<> run_check(rendezvous::NodeCheck request, Checked done);
  Awaitable<> run_clean(rendezvous::JobStart job, Checked done);
  Awaitable<bool> predecessor_gone(rendezvous::JobStart order);
  Awaitable<Result<NodeJob>> make_job(rendezvous::JobStart order);
  Awaitable<Result<EnvVars>> make_environment(rendezvous::JobStart order, bool quiet);

  asio::any_io_executor executor_;
  BlockingCalls& disk_;
  std::string directory_;
  SendNotice send_notice_;
  NodeSetup setup_;
  ToolStop tools_;  ///< of the running check; its `stopped` holds for all steps
  TaskGroup tasks_;
};

}  // namespace ddp::launcher
