#include "remote/shells/command_shell.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "remote/hosts/shell_command.h"
#include "remote/shells/child_channel.h"

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

Awaitable<Result<std::unique_ptr<Channel>>> CommandShell::open(Host host, std::vector<std::string> argv,
                                                               Deadline deadline) {
  return open_through({}, std::move(host), std::move(argv), deadline);
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

}  // namespace ddp::remote
