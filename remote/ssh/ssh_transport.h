#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/blocking_calls.h"
#include "remote/ssh/known_hosts.h"
#include "remote/ssh/ssh_config.h"
#include "remote/start/resolver.h"
#include "remote/transports/command_transport.h"
#include "remote/transports/transport.h"

namespace ddp::remote {

class KerberosTicket;
struct SshTarget;
class SshThreads;

struct SshTransportOptions {
  std::string config;  ///< as in `ssh -F FILE`; empty: the user's and the system's files
  bool accept_new_host_keys = false;
  std::string ssh_program = "ssh";  ///< prints the configuration, and serves hosts that libssh cannot
  unsigned io_threads = 0;          ///< 0: one per CPU, at most 4
  /// Concurrent logins at one address and port; servers drop connections beyond MaxStartups (10 by default).
  unsigned window = 8;
  /// Called once for each reason why a host uses the ssh program, and for each named key that cannot be used.
  /// May be empty.
  std::function<void(const std::string&)> notice;
  /// Called once with the options of the configuration that have no effect. May be empty.
  std::function<void(const std::string&)> detail;
};

/// Runs commands through libssh: many non-blocking sessions on a few I/O threads, about 2 ms of CPU per host.
/// The user's configuration, keys, ssh-agent and known_hosts apply as for the ssh program. Hosts with a
/// configuration that libssh cannot serve go through the ssh program (docs/users/ssh.md). Loop thread only.
/// It is destroyed before the loop; its channels may outlive it.
class SshTransport final : public Transport {
 public:
  SshTransport(asio::any_io_executor loop, SshTransportOptions options);
  ~SshTransport() override;

  Awaitable<Result<std::unique_ptr<Channel>>> open(Host host, std::vector<std::string> argv,
                                                   Deadline deadline) override;

  const char* step(const std::string& host, bool opened) const override;

  /// Returns the number of `ssh -G` runs.
  int configuration_questions() const { return configs_->questions(); }

 private:
  struct Attempt;
  class SshChannel;
  struct Files;

  Awaitable<void> attempt(std::shared_ptr<Attempt> attempt, SshTarget target);
  Awaitable<Result<std::unique_ptr<Channel>>> through_openssh(Host host, std::vector<std::string> argv,
                                                              Deadline deadline, std::string reason,
                                                              CommandTransport::Route route);
  void warn_of_keys(const Host& host, const SshTarget& target);
  SshThreads& threads();

  asio::any_io_executor loop_;
  SshTransportOptions options_;
  std::shared_ptr<SshConfigSource> configs_;
  Resolver resolver_;
  CommandTransportOptions openssh_options_;
  CommandTransport openssh_;
  std::shared_ptr<KerberosTicket> ticket_;
  LoginWindow window_;
  BlockingCalls disk_;
  std::shared_ptr<Files> files_;  ///< read by the one thread of disk_, which may outlive this object
  std::shared_ptr<SshThreads> threads_;
  std::set<std::string> reported_;
  bool without_effect_noted_ = false;
  std::mt19937 random_;
  using Steps = std::map<std::string, const char*>;  ///< by host name
  std::shared_ptr<Steps> steps_;                     ///< without entry: Transport::step
};

}  // namespace ddp::remote
