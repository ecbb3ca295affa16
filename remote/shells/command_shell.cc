#include "remote/shells/command_shell.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "remote/hosts/shell_command.h"

namespace ddp::remote {

std::vector<std::string> CommandShell::command_line(const CommandShellOptions& options, const Route& route,
                                                    const Host& host, const std::string& remote_line,
                                                    long seconds) {
  std::vector<std::string> line = options.words;
  auto option = [&line](const std::string& setting) {
    line.push_back("-o");
    line.push_back(setting);
  };
  if (!options.config.empty()) {
    line.push_back("-F");
    line.push_back(options.config);
  }
  line.push_back("-T");
  line.push_back("-x");
  for (const std::string& setting : route.settings)
    option(setting);
  option("BatchMode=yes");
  option("ConnectTimeout=" + std::to_string(seconds));
  // Override settings for interactive use, and settings that fail when 64 sessions use them at once.
  option("ClearAllForwardings=yes");
  option("PermitLocalCommand=no");
  option("RemoteCommand=none");
  option("StdinNull=no");
  // The heartbeats of master and agent decide when a link is dead: an outage shorter than --node-timeout is
  // none.
  option("ServerAliveInterval=0");
  // Use an existing shared connection, but create none: it would outlive the job.
  option("ControlMaster=no");
  if (options.accept_new_host_keys) option("StrictHostKeyChecking=accept-new");
  if (options.accept_new_host_keys && !route.proxy_jump.empty()) {
    // ssh passes its own -o options to no jump host.
    std::vector<std::string> jump = options.words;
    if (!options.config.empty()) jump.insert(jump.end(), {"-F", options.config});
    jump.insert(jump.end(), {"-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"});
    if (auto command = jump_command(jump, route.proxy_jump)) option("ProxyCommand=" + *command);
  }
  // Set after ProxyCommand, which then takes precedence.
  if (!host.jump.empty()) option("ProxyJump=" + host.jump);
  if (!host.address.empty()) option("HostName=" + without_tokens(host.address));
  if (host.port != 0) option("Port=" + std::to_string(host.port));
  if (!host.user.empty()) option("User=" + host.user);
  if (!host.identity.empty()) {
    line.push_back("-i");
    line.push_back(host.identity);
  }
  line.push_back("--");  // a host named "-oProxyCommand=…" is not an option
  line.push_back(host.name);
  line.push_back(remote_line);
  return line;
}

std::string CommandShell::by_hand(const CommandShellOptions& options, const Host& host) {
  std::vector<std::string> words = options.words;
  if (!options.config.empty()) words.insert(words.end(), {"-F", options.config});
  if (!host.jump.empty()) words.insert(words.end(), {"-J", host.jump});
  if (host.port != 0) words.insert(words.end(), {"-p", std::to_string(host.port)});
  if (!host.address.empty()) words.insert(words.end(), {"-o", "HostName=" + without_tokens(host.address)});
  if (!host.identity.empty()) words.insert(words.end(), {"-i", host.identity});
  words.push_back(host.user.empty() ? host.name : host.user + "@" + host.name);
  auto line = shell_quote(words);
  return line ? *line : options.words.front() + " " + host.name;
}

Awaitable<Result<std::unique_ptr<Channel>>> CommandShell::open_through(Route route, Host host,
                                                                       std::vector<std::string> argv,
                                                                       Deadline deadline) {
  auto remote_line = shell_quote(argv);
  if (!remote_line) co_return within(host.name, remote_line.error());
  if (!host.jump.empty()) route.proxy = route.proxy_jump = host.jump == "none" ? "" : host.jump;
  std::shared_ptr<LoginWindow::Slot> slot;
  if (!route.proxy.empty()) {
    auto turn = co_await window_.acquire(route.proxy, host.name, deadline);
    if (!turn) co_return turn.error();
    slot = std::make_shared<LoginWindow::Slot>(std::move(*turn));
  }
  // One second less than the time left, so that the program's own timeout message arrives before the
  // deadline.
  const auto left =
      std::chrono::duration_cast<std::chrono::seconds>(deadline - std::chrono::steady_clock::now());
  long seconds = std::clamp<long>(left.count() - 1, 1, 3600);
  if (route.connect_timeout > 0) seconds = std::min<long>(seconds, route.connect_timeout);
  auto line = command_line(options_, route, host, *remote_line, seconds);
  ChildCommand command{host.name, std::move(line), ChildCommand::Kind::kSshClient};
  command.held = slot;
  command.advice = route.advice + "; ddplaunch never prompts; run \"" + by_hand(options_, host) +
                   " true\" in a terminal to see whether ssh asks for a passphrase (then run ssh-add first), "
                   "a password, or a host key";
  auto channel = open_child(loop_, std::move(command));
  if (!channel && channel.error().code == ErrorCode::kExec) {
    Error error = channel.error();
    error.code = ErrorCode::kUnreachable;  // no worker failed: the way to the host did
    error.text += "; it is the program of --ssh-command";
    co_return error;
  }
  co_return channel;
}

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
