#pragma once

#include <memory>
#include <string>
#include <vector>

#include "remote/shells/login_window.h"
#include "remote/shells/remote_shell.h"

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

  /// What is known of a host's configuration beforehand. All may be empty.
  struct Route {
    std::string proxy;  ///< any text that names the jump host or proxy, which lets in only so many at once
    std::string proxy_jump;             ///< ProxyJump as written
    int connect_timeout = 0;            ///< seconds; 0: what is left until the deadline
    std::vector<std::string> settings;  ///< more "Option=value", which go first
    std::string advice;  ///< what to do when the program cannot log in, besides the general words
  };
  /// The same for such a host. The place at the proxy is given back by Channel::greeted().
  Awaitable<Result<std::unique_ptr<Channel>>> open_through(Route route, Host host,
                                                           std::vector<std::string> argv, Deadline deadline);

  /// The whole command line for a host. `remote_line` goes through the login shell there; `seconds` is the
  /// time that is left for connecting.
  static std::vector<std::string> command_line(const CommandShellOptions& options, const Route& route,
                                               const Host& host, const std::string& remote_line,
                                               long seconds);
  /// What a user types to reach the host as this does: the program, its -F FILE, port, address, user, name.
  static std::string by_hand(const CommandShellOptions& options, const Host& host);

 private:
  asio::any_io_executor loop_;
  CommandShellOptions options_;
  LoginWindow window_;
};

}  // namespace ddp::remote
