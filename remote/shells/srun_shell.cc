#include "remote/shells/srun_shell.h"

#include <iterator>
#include <utility>

#include "remote/shells/child_channel.h"

namespace ddp::remote {
namespace {

/// Options of the batch job that srun would read again for the step of the agent, as if it were one task of
/// the user's: with them it would get one task's share of the node (its CPUs, its GPUs, its memory), or none.
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
      // Beside other steps, and without waiting for them.
      "--overlap",
      // The step is the node's whole share of the job, and not one core of it.
      "--cpu-bind=none", "--mem=0", "--mpi=none",
      // No notes of its own, such as that this Slurm binds nothing anyway.
      "--quiet",
      // Otherwise bytes of the link wait on the node for a line feed.
      "--unbuffered",
      // The job's variables go over the link; LD_PRELOAD, device masks and the like stay.
      "--export=HOME,USER,LOGNAME,SHELL,PATH",
      // The directory of the job is entered later, and told of when it is not there.
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
