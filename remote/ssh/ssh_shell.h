#pragma once

#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/blocking_calls.h"
#include "remote/shells/command_shell.h"
#include "remote/shells/login_window.h"
#include "remote/shells/remote_shell.h"
#include "remote/ssh/kerberos_ticket.h"
#include "remote/ssh/known_hosts.h"
#include "remote/ssh/ssh_config_source.h"
#include "remote/start/resolver.h"

namespace ddp::remote {

struct SshTarget;
class SshThreads;

struct SshShellOptions {
  std::string config;  ///< as `ssh -F FILE`; empty: the user's and the system's
  bool accept_new_host_keys = false;
  std::string ssh_program =
      "ssh";                ///< asked for the configuration, and used for hosts that libssh cannot serve
  unsigned io_threads = 0;  ///< 0: one for each CPU, at most 4
  /// Logins under way at once at one address and port; servers drop connections beyond MaxStartups (10 by
  /// default).
  unsigned window = 8;
  /// Told once for each reason why a host goes through the ssh program, and for each named key that cannot
  /// be used. May be empty.
  std::function<void(const std::string&)> notice;
};

/// Runs commands through libssh: many non-blocking sessions on a few I/O threads, about 2 ms of CPU a host.
/// The user's configuration, keys, ssh-agent and known_hosts count as for the ssh program, which also serves,
/// by itself, the hosts whose configuration libssh cannot (docs/ssh.md). Loop thread only; destroyed before
/// the loop, and channels it gave may outlive it.
class SshShell final : public RemoteShell {
 public:
  SshShell(asio::any_io_executor loop, SshShellOptions options);
  ~SshShell() override;

  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline deadline) override;

  /// How often `ssh -G` was run.
  int configuration_questions() const { return configs_->questions(); }

 private:
  struct Attempt;
  class SshChannel;
  struct Files;

  Awaitable<void> attempt(std::shared_ptr<Attempt> attempt, SshTarget target);
  Awaitable<Result<std::unique_ptr<Channel>>> through_openssh(Host host, std::vector<std::string> argv,
                                                              Deadline deadline, std::string reason,
                                                              CommandShell::Route route);
  void warn_of_keys(const Host& host, const SshTarget& target);
  SshThreads& threads();

  asio::any_io_executor loop_;
  SshShellOptions options_;
  std::shared_ptr<SshConfigSource> configs_;
  Resolver resolver_;
  CommandShellOptions openssh_options_;
  CommandShell openssh_;
  std::shared_ptr<KerberosTicket> ticket_;
  LoginWindow window_;
  BlockingCalls disk_;
  std::shared_ptr<Files> files_;  ///< read by the one thread of disk_, which may outlive us
  std::shared_ptr<SshThreads> threads_;
  std::set<std::string> reported_;
  std::mt19937 random_;
};

}  // namespace ddp::remote
