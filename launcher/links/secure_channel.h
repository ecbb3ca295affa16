#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "base/result.h"
#include "remote/shells/remote_shell.h"

namespace ddp::launcher {

/// The remote stream of a SecureChannel. The owner uses it directly, or it carries the bytes between a local
/// socket and the remote stream in both directions. It outlives the channel until the last bytes are sent. It
/// holds a buffer only while bytes are in transit, and reads on only when the previous bytes were taken. Loop
/// thread.
class SecureLine : public std::enable_shared_from_this<SecureLine> {
 public:
  using Socket = remote::Channel::Socket;
  using Clock = std::chrono::steady_clock;

  SecureLine(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream);
  /// Starts to carry bytes; returns the owner's end of the local socket. Error kSystem: out of descriptors.
  Result<Socket> carry();
  /// For an owner that needs no socket: call instead of carry().
  std::unique_ptr<ByteStream> direct();

  /// Returns whether the end of the remote stream was passed on.
  bool ended() const { return ended_; }
  /// The reason, unless the stream ended cleanly.
  const std::optional<Error>& broken() const { return broken_; }
  /// `handler` is called once at the stream's end, even if the channel was destroyed before.
  void on_end(std::function<void()> handler) { on_end_ = std::move(handler); }
  /// When the last byte arrived from the peer.
  Clock::time_point last_heard() const { return last_heard_; }
  /// Ends the stream for the reason `why`, which the channel's end() then reports.
  void cut(Error why);

 private:
  friend class SecureChannel;
  class Direct;

  static Awaitable<> inbound(std::shared_ptr<SecureLine> self);
  static Awaitable<> outbound(std::shared_ptr<SecureLine> self);
  Awaitable<> write_whole(const char* bytes, std::size_t size);
  void close();
  void finish(const error_code& error);
  void drop();

  std::unique_ptr<ByteStream> stream_;
  Socket local_;                 ///< not open: nothing is carried
  asio::steady_timer over_;      ///< never expires; cancelled at the end
  asio::steady_timer patience_;  ///< limits how long the peer may take for the last bytes
  std::function<void()> on_end_;
  std::optional<Error> broken_;
  Clock::time_point last_heard_ = Clock::now();
  bool ended_ = false;
  bool unheard_ = false;  ///< a write failed: the peer receives nothing more
  bool dropped_ = false;  ///< the channel was destroyed
  bool silent_ = false;   ///< its owner sends nothing more
};

/// A link to a node over a proven TLS stream (or any other ByteStream), as a remote::Channel, for per-node
/// mode. It does not carry the agent's stderr, so errors() is not open. stream() is the remote stream itself,
/// so that a link costs one descriptor, even for a master of thousands of nodes. link() makes local sockets;
/// the peer's end is then noticed even if no one reads. The destructor does not block: bytes written before
/// are still sent, within 2 s.
class SecureChannel final : public remote::Channel {
 public:
  /// `address` is the peer's, numeric.
  SecureChannel(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream, std::string address);
  ~SecureChannel() override;

  std::string address() const override { return address_; }
  Socket& link() override;  ///< not open: out of descriptors
  std::unique_ptr<ByteStream> stream() override;
  Socket& errors() override { return errors_; }
  Awaitable<remote::ChannelEnd> end() override;

  /// For an owner that gives the channel away and must end it later.
  std::weak_ptr<SecureLine> line() const { return line_; }

 private:
  std::shared_ptr<SecureLine> line_;
  Socket link_;
  Socket errors_;  ///< never open
  std::string address_;
};

}  // namespace ddp::launcher
