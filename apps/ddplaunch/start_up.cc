#include "apps/ddplaunch/start_up.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/version.h"
#include "remote/command_shell.h"
#include "remote/local_shell.h"
#include "remote/srun_shell.h"
#include "remote/ssh_shell.h"
#include "rendezvous/message.h"

namespace ddp {
namespace {

/// ddplaunchd lies beside this program, here and, unless --agent says otherwise, at the same path on the
/// nodes.
Result<std::string> own_directory() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  if (size < 0) return system_error(errno, "/proc/self/exe");
  const std::string_view text(path, static_cast<std::size_t>(size));
  return std::string(text.substr(0, text.rfind('/')));
}

}  // namespace

void take_signals() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

std::unique_ptr<remote::RemoteShell> make_remote_shell(asio::io_context& loop,
                                                       const launcher::JobSpec& spec) {
  if (!spec.ssh_command.empty()) {
    return std::make_unique<remote::CommandShell>(
        loop.get_executor(),
        remote::CommandShellOptions{spec.ssh_command, spec.ssh_config, spec.accept_new_host_keys});
  }
  if (spec.launcher == launcher::LauncherKind::kLocal) {
    return std::make_unique<remote::LocalShell>(loop.get_executor());
  }
  if (spec.launcher == launcher::LauncherKind::kSlurm) {
    return std::make_unique<remote::SrunShell>(loop.get_executor());
  }
  remote::SshShellOptions options;
  options.config = spec.ssh_config;
  options.accept_new_host_keys = spec.accept_new_host_keys;
  if (!spec.quiet) {
    options.notice = [](const std::string& text) { std::fprintf(stderr, "ddplaunch: %s\n", text.c_str()); };
  }
  return std::make_unique<remote::SshShell>(loop.get_executor(), std::move(options));
}

Result<AgentChoice> choose_agent(const launcher::JobSpec& spec) {
  AgentChoice choice;
  choice.expected = {static_cast<int>(rendezvous::kProtocolVersion), std::string(version())};
  choice.path = spec.agent_path;
  if (!choice.path.empty()) return choice;
  auto beside = own_directory();
  if (!beside) return beside.error();
  choice.path = *beside + "/ddplaunchd";
  if (spec.push) {
    const bool train = spec.command.kind == launcher::WorkerCommand::Kind::kTrain;
    choice.stock.emplace(remote::AgentStock::Wants{std::move(*beside), choice.expected, train});
  }
  return choice;
}

}  // namespace ddp
