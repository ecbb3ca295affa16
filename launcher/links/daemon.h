#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/links/daemon_frame.h"
#include "remote/start/resolver.h"
#include "remote/transports/transport.h"
#include "rendezvous/link/secure_link.h"

// Daemon mode (docs/users/daemon.md): `ddplaunchd --listen` on a node, and the master's end of its links.

namespace ddp::launcher {

using LocalSocket = asio::local::stream_protocol::socket;

/// The TLS link between a daemon and a master, at either end. One task reads; several tasks send whole
/// frames, one at a time. Loop thread only. The owner keeps the object until all calls have returned.
class DaemonLine {
 public:
  DaemonLine(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream)
      : stream_(std::move(stream)), free_(loop, std::chrono::steady_clock::time_point::max()) {}

  /// Waits for its turn, then until all is written. An error concerns the link; all later calls return it,
  /// too.
  Awaitable<error_code> send(std::string frame);
  Awaitable<ByteStream::Transferred> read_some(asio::mutable_buffer buffer) {
    return stream_->read_some(buffer);
  }
  /// Ends all pending calls with an error.
  void close();

  /// Sends bytes from `socket` as frames of `kind` until the socket or the link ends. Returns true if the
  /// socket has ended. Holds no buffer while the socket is idle.
  Awaitable<bool> carry(DaemonFrame kind, LocalSocket& socket);

 private:
  std::unique_ptr<ByteStream> stream_;
  asio::steady_timer free_;  ///< never expires; cancelled when a turn has ended
  bool busy_ = false;
  error_code broken_;
};

/// Ends both directions. The other end can still read what was written; closing with unread bytes would turn
/// its last read into an error.
void end_both_directions(LocalSocket& socket);

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
class DaemonTransport final : public remote::Transport {
 public:
  struct Options {
    rendezvous::LinkToken token;
    std::string job;                   ///< a result of rendezvous::link_name_of
    rendezvous::LinkHello hello;       ///< of this program
    std::uint16_t port = kDaemonPort;  ///< for hosts without a port of their own
  };

  DaemonTransport(const asio::any_io_executor& loop, Options options)
      : loop_(loop), options_(std::move(options)), resolver_(loop) {}

  Awaitable<Result<std::unique_ptr<remote::Channel>>> open(remote::Host host, std::vector<std::string> argv,
                                                           remote::Deadline deadline) override;
  const char* intermediary() const override { return "the daemon there"; }

 private:
  asio::any_io_executor loop_;
  Options options_;
  remote::Resolver resolver_;
};

/// `ddplaunchd --listen`: accepts masters that prove the token, and forks a session process for each, which
/// starts the ddplaunchd `agent`. Sessions survive the end of this process, so a restart or an upgrade ends
/// no job. Returns the exit code; a session process never returns. SIGTERM, SIGINT and SIGHUP end only the
/// listener. Must be called before any thread starts. Log lines go to stderr. `port` has listener, token and
/// `where`.
int run_daemon_listener(rendezvous::SecureAcceptorOptions port, std::string agent);

}  // namespace ddp::launcher
