#pragma once

#include <memory>
#include <string>
#include <vector>

#include "remote/shells/remote_shell.h"

namespace ddp::remote {

/// Runs commands on the nodes of a Slurm allocation, one `srun` and so one job step a host. Inside the
/// allocation only: srun takes the job from SLURM_JOB_ID. The command is executed as it is, no shell reads
/// it; of our environment it gets what names the user and where programs lie, and the step's own SLURM_*.
///
/// open() returns as soon as srun runs. What kept it from starting the command is told by Channel::end() and
/// on its stderr.
class SrunShell final : public RemoteShell {
 public:
  explicit SrunShell(asio::any_io_executor loop) : loop_(std::move(loop)) {}

  /// Errors: kUnreachable when there is no srun, kSystem. The deadline is the caller's to keep.
  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline deadline) override;
  const char* intermediary() const override { return "srun"; }

  /// The whole command line for a host: its address, else its name, is the node's name in Slurm.
  static std::vector<std::string> command_line(const Host& host, const std::vector<std::string>& argv);

 private:
  asio::any_io_executor loop_;
};

}  // namespace ddp::remote
