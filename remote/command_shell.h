#pragma once

#include <memory>
#include <string>
#include <vector>

#include "remote/login_window.h"
#include "remote/remote_shell.h"

namespace ddp::remote {

struct CommandShellOptions {
  std::vector<std::string> words{"ssh"};  ///< --ssh-command, split: a program that takes OpenSSH's options
  std::string config;                     ///< as `ssh -F FILE`; empty: the user's
  bool accept_new_host_keys = false;
  unsigned jump_window = 8;  ///< logins under way at once through one jump host
};

/// Runs commands through the OpenSSH program, one process per host. Serves what libssh cannot (jump hosts,
/// host certificates, PKCS#11, Kerberos); costs about 15 ms of CPU a host.
///
/// open() returns as soon as the program runs. That it could not connect or log in is told by Channel::end():
/// kUnreachable with the last lines of its stderr (exit status 255, which a remote command can also have).
class CommandShell final : public RemoteShell {
 public:
  CommandShell(asio::any_io_executor loop, CommandShellOptions options)
      : loop_(loop), options_(std::move(options)), window_(std::move(loop), options_.jump_window) {}

  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline deadline) override;

  /// The same for a host behind a jump host or proxy (any text that names it; empty: none), which lets in
  /// only so many at once. The place is given back by Channel::greeted().
  Awaitable<Result<std::unique_ptr<Channel>>> open_through(std::string proxy, Host host,
                                                           std::vector<std::string> argv, Deadline deadline);

  /// The whole command line for a host. `remote_line` goes through the login shell there; `seconds` is the
  /// time that is left for connecting.
  static std::vector<std::string> command_line(const CommandShellOptions& options, const Host& host,
                                               const std::string& remote_line, long seconds);

 private:
  asio::any_io_executor loop_;
  CommandShellOptions options_;
  LoginWindow window_;
};

}  // namespace ddp::remote
