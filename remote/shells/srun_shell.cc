#include "remote/shells/srun_shell.h"

#include <iterator>
#include <utility>

#include "remote/shells/child_channel.h"

namespace ddp::remote {
namespace {

/// Options of the batch job that srun would apply again to the agent's step, as if it were one of the user's
/// tasks. The step would then get one task's share of the node (CPUs, GPUs, memory), or none.
constexpr const char* kOfTheJob[] = {"SLURM_CPUS_PER_TASK",
                                     "SRUN_CPUS_PER_TASK",
                                     "SLURM_TRES_PER_TASK",
                                     "SLURM_NTASKS",
                                     "SLURM_NPROCS",
                                     "SLURM_NTASKS_PER_NODE",
                                     "SLURM_NTASKS_PER_CORE",
                                     "SLURM_NTASKS_PER_SOCKET",
                                     "SLURM_NTASKS_PER_GPU",
                                     "SLURM_GPUS",
                                     "SLURM_GPUS_PER_TASK",
                                     "SLURM_GPUS_PER_NODE",
                                     "SLURM_GPUS_PER_SOCKET",
                                     "SLURM_GPU_BIND",
                                     "SLURM_MEM_PER_CPU",
                                     "SLURM_MEM_PER_GPU",
                                     "SLURM_MEM_PER_NODE",
                                     "SLURM_EXACT",
                                     "SLURM_EXCLUSIVE",
                                     "SLURM_THREADS_PER_CORE",
                                     "SLURM_HINT",
                                     "SLURM_CPU_BIND",
                                     "SLURM_MEM_BIND",
                                     "SLURM_DISTRIBUTION",
                                     "SLURM_ARBITRARY_LIST",
                                     "SLURM_MULTI_PROG",
                                     "SLURM_STDOUTMODE",
                                     "SLURM_STDINMODE",
                                     "SLURM_STDERRMODE",
                                     "SLURM_LABELIO",
                                     "SLURM_TIMELIMIT",
                                     "SLURM_STEP_TASKS_PER_NODE"};

}  // namespace

std::vector<std::string> SrunShell::command_line(const Host& host, const std::vector<std::string>& argv) {
  std::vector<std::string> line = {
      "srun", "--nodes=1", "--ntasks=1", "--nodelist=" + (host.address.empty() ? host.name : host.address),
      // Runs beside other steps without waiting for them.
      "--overlap",
      // The step gets the node's whole share of the job, not one core of it.
      "--cpu-bind=none", "--mem=0", "--mpi=none",
      // Suppresses srun's own notes, for example that this Slurm binds nothing.
      "--quiet",
      // Otherwise bytes of the link wait on the node for a line feed.
      "--unbuffered",
      // The job's variables go over the link. LD_PRELOAD, device masks and the like are not passed on.
      "--export=HOME,USER,LOGNAME,SHELL,PATH",
      // The job's directory is entered later, where a missing directory is reported.
      "--chdir=/"};
  line.insert(line.end(), argv.begin(), argv.end());
  return line;
}

Awaitable<Result<std::unique_ptr<Channel>>> SrunShell::open(Host host, std::vector<std::string> argv,
                                                            Deadline) {
  ChildCommand command{host.name, command_line(host, argv), ChildCommand::Kind::kSshClient};
  command.unset.assign(std::begin(kOfTheJob), std::end(kOfTheJob));
  auto channel = open_child(loop_, std::move(command));
  if (!channel && channel.error().code == ErrorCode::kExec) {
    Error error = channel.error();
    error.code = ErrorCode::kUnreachable;  // no worker failed: the way to the host did
    co_return error;
  }
  co_return channel;
}

}  // namespace ddp::remote
