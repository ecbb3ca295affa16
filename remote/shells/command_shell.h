#pragma once

#include <memory>
#include <string>
#include <vector>

#include "remote/shells/login_window.h"
#include "remote/shells/remote_shell.h"

namespace ddp::remote {

struct CommandShellOptions {
  std::vector<std::string> words{"ssh"};  ///< --ssh-command, split: a program with OpenSSH's options
  std::string config;                     ///< as in `ssh -F FILE`; empty: the user's files
  bool accept_new_host_keys = false;
  unsigned jump_window = 8;  ///< concurrent logins through one jump host
};

/// Runs commands through the OpenSSH program, one process per host. It serves hosts that libssh cannot serve
/// (jump hosts, host certificates, PKCS#11, Kerberos). The cost is about 15 ms of CPU per host.
///
/// open() returns as soon as the program runs. Channel::end() reports a failed connection or login as
/// kUnreachable with the last lines of stderr (exit status 255, which a remote command can also have).
class CommandShell final : public RemoteShell {
 public:
  CommandShell(asio::any_io_executor loop, CommandShellOptions options)
      : loop_(loop), options_(std::move(options)), window_(std::move(loop), options_.jump_window) {}

  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline deadline) override;

  /// open() does not wait for the login.
  const char* step(const std::string& /*host*/, bool /*opened*/) const override {
    return "SSH login, or starting ddplaunchd";
  }

  /// Known parts of a host's configuration. All may be empty.
  struct Route {
    std::string proxy;       ///< any text that identifies the jump host or proxy, whose concurrent logins are
                             ///< limited
    std::string proxy_jump;  ///< ProxyJump as written
    int connect_timeout = 0;            ///< seconds; 0: the time until the deadline
    std::vector<std::string> settings;  ///< further "Option=value", which take precedence
    std::string advice;                 ///< what to do when the login fails, besides the general advice
  };
  /// Opens a channel to a host with this configuration. Channel::greeted() releases the slot at the proxy.
  Awaitable<Result<std::unique_ptr<Channel>>> open_through(Route route, Host host,
                                                           std::vector<std::string> argv, Deadline deadline);

  /// Returns the whole command line for a host. `remote_line` goes through the login shell there; `seconds`
  /// is the time left for connecting.
  static std::vector<std::string> command_line(const CommandShellOptions& options, const Route& route,
                                               const Host& host, const std::string& remote_line,
                                               long seconds);
  /// Returns the command that a user types to reach the host in the same way: program, -F FILE, port,
  /// address, user, name.
  static std::string by_hand(const CommandShellOptions& options, const Host& host);

 private:
  asio::any_io_executor loop_;
  CommandShellOptions options_;
  LoginWindow window_;
};

}  // namespace ddp::remote
