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

/// The far stream of a SecureChannel. Its owner reads and writes it directly, or, for who wants a socket, it
/// carries the bytes between a local one and the far stream, in both directions, and outlives the channel
/// until the last words are out; it holds a buffer only while bytes are under way, and reads on only when
/// what it has read was taken. Loop thread.
class SecureLine : public std::enable_shared_from_this<SecureLine> {
 public:
  using Socket = remote::Channel::Socket;
  using Clock = std::chrono::steady_clock;

  SecureLine(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream);
  /// The owner's end of a local socket whose bytes are carried from here on. kSystem: no descriptors are
  /// left.
  Result<Socket> carry();
  /// For the owner who needs no socket: instead of carry().
  std::unique_ptr<ByteStream> direct();

  /// The far stream's end was passed on.
  bool ended() const { return ended_; }
  /// Why, when it was no clean one.
  const std::optional<Error>& broken() const { return broken_; }
  /// Called once, when it has ended, also when the channel has gone before.
  void on_end(std::function<void()> handler) { on_end_ = std::move(handler); }
  /// When the last byte came from the far side.
  Clock::time_point last_heard() const { return last_heard_; }
  /// Ends it for `why`, which the channel's end() will tell.
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
  asio::steady_timer patience_;  ///< with a far side that does not take the last words
  std::function<void()> on_end_;
  std::optional<Error> broken_;
  Clock::time_point last_heard_ = Clock::now();
  bool ended_ = false;
  bool unheard_ = false;  ///< a write failed: the far side hears nothing any more
  bool dropped_ = false;  ///< the channel has gone
  bool silent_ = false;   ///< its owner has nothing more to say
};

/// A link to a node over a proven TLS stream (or any other ByteStream), as the channel that the rest knows:
/// per-node mode. What the agent there would say on stderr has no way here: errors() is not open. stream() is
/// the far stream itself, so that a link is one descriptor for a master of thousands; link() makes local
/// sockets, and then the far side's end is noticed although nobody reads. The destructor ends it without
/// waiting; what was written before still goes out, within 2 s.
class SecureChannel final : public remote::Channel {
 public:
  /// `address` is the far side's, numeric.
  SecureChannel(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream, std::string address);
  ~SecureChannel() override;

  std::string address() const override { return address_; }
  Socket& link() override;  ///< not open: no descriptors are left
  std::unique_ptr<ByteStream> stream() override;
  Socket& errors() override { return errors_; }
  Awaitable<remote::ChannelEnd> end() override;

  /// For whoever gives the channel away and has to end it later.
  std::weak_ptr<SecureLine> line() const { return line_; }

 private:
  std::shared_ptr<SecureLine> line_;
  Socket link_;
  Socket errors_;  ///< never open
  std::string address_;
};

}  // namespace ddp::launcher
