#pragma once

#include <memory>
#include <string>
#include <vector>

#include "remote/shells/remote_shell.h"

namespace ddp::remote {

/// Runs commands on the nodes of a Slurm allocation with one `srun`, and so one job step, per host. It works
/// only inside the allocation: srun takes the job from SLURM_JOB_ID. srun executes the command itself,
/// without a shell. The command's environment has the variables for the user and PATH, and the step's own
/// SLURM_*.
///
/// open() returns as soon as srun runs. Channel::end() and stderr report why srun could not start the
/// command.
class SrunShell final : public RemoteShell {
 public:
  explicit SrunShell(asio::any_io_executor loop) : loop_(std::move(loop)) {}

  /// Errors: kUnreachable when there is no srun, kSystem. The caller enforces the deadline.
  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline deadline) override;
  const char* intermediary() const override { return "srun"; }

  /// Returns the whole command line for a host, whose address, else name, is the node's name in Slurm.
  static std::vector<std::string> command_line(const Host& host, const std::vector<std::string>& argv);

 private:
  asio::any_io_executor loop_;
};

}  // namespace ddp::remote
