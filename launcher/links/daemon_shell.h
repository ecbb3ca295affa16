#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/links/daemon_frame.h"
#include "remote/shells/remote_shell.h"
#include "remote/start/resolver.h"
#include "rendezvous/link/secure_link.h"

namespace ddp::launcher {

/// The master's end of a link to a node's daemon, as a channel to the agent that the daemon starts. `host`
/// and `where` ("gpu01:29499 (10.0.0.2)") are for messages; `address` and `port` are the daemon's. Error
/// kSystem: out of descriptors. Loop thread only. Destroying the channel ends the agent's input, as with SSH.
Result<std::unique_ptr<remote::Channel>> make_daemon_channel(const asio::any_io_executor& loop,
                                                             std::unique_ptr<ByteStream> stream,
                                                             std::string host, std::string where,
                                                             std::string address, std::uint16_t port);

/// Returns a function that asks the name service for the addresses of a host, at most for `limit` each time.
/// The resolver must outlive it.
rendezvous::Resolve resolve_by(remote::Resolver& resolver, std::chrono::nanoseconds limit);

/// Reaches nodes that run `ddplaunchd --listen` (docs/users/daemon.md), over TLS with the token that all
/// share. The daemon starts the ddplaunchd beside it, regardless of the command line; a wrapper is refused. A
/// host's port is the daemon's. SSH's user, identity and jump host are not used.
class DaemonShell final : public remote::RemoteShell {
 public:
  struct Options {
    rendezvous::LinkToken token;
    std::string job;                   ///< a result of rendezvous::link_name_of
    rendezvous::LinkHello hello;       ///< of this program
    std::uint16_t port = kDaemonPort;  ///< for hosts without a port of their own
  };

  /// Error kInternal: this machine's OpenSSL does not support such links.
  static Result<std::unique_ptr<DaemonShell>> make(const asio::any_io_executor& loop, Options options);

  Awaitable<Result<std::unique_ptr<remote::Channel>>> open(remote::Host host, std::vector<std::string> argv,
                                                           remote::Deadline deadline) override;
  const char* intermediary() const override { return "the daemon there"; }

 private:
  DaemonShell(const asio::any_io_executor& loop, std::shared_ptr<const rendezvous::SecureContext> context,
              Options options);

  asio::any_io_executor loop_;
  std::shared_ptr<const rendezvous::SecureContext> context_;
  Options options_;
  remote::Resolver resolver_;
};

}  // namespace ddp::launcher
