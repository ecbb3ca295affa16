#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "base/result.h"
#include "remote/remote_shell.h"

namespace ddp::launcher {

/// What carries a SecureChannel's bytes between its local socket and the far stream, in both directions, and
/// outlives it until the last words are out. It holds a buffer only while bytes are under way, and reads on
/// only when what it has read was taken. Loop thread.
class SecureLine : public std::enable_shared_from_this<SecureLine> {
 public:
  using Socket = remote::Channel::Socket;
  using Clock = std::chrono::steady_clock;

  SecureLine(std::unique_ptr<ByteStream> stream, Socket local);
  void start();

  /// The far stream's end was passed on.
  bool ended() const { return ended_; }
  /// Why, when it was no clean one.
  const std::optional<Error>& broken() const { return broken_; }
  /// Called once, when it has ended, also when the channel has gone before.
  void on_end(std::function<void()> told) { told_ = std::move(told); }
  /// When the last byte came from the far side.
  Clock::time_point last_heard() const { return last_heard_; }
  /// Ends it for `why`, which the channel's end() will tell.
  void cut(Error why);

 private:
  friend class SecureChannel;

  static Awaitable<> inbound(std::shared_ptr<SecureLine> self);
  static Awaitable<> outbound(std::shared_ptr<SecureLine> self);
  Awaitable<> write_whole(const char* bytes, std::size_t size);
  void finish(const error_code& error);
  void drop();

  std::unique_ptr<ByteStream> stream_;
  Socket local_;
  asio::steady_timer over_;      ///< never expires; cancelled at the end
  asio::steady_timer patience_;  ///< with a far side that does not take the last words
  std::function<void()> told_;
  std::optional<Error> broken_;
  Clock::time_point last_heard_ = Clock::now();
  bool ended_ = false;
  bool unheard_ = false;  ///< a write failed: the far side hears nothing any more
  bool dropped_ = false;  ///< the channel has gone
  bool silent_ = false;   ///< its owner has nothing more to say
};

/// A link to a node over a proven TLS stream (or any other ByteStream), as the channel that the rest knows:
/// per-node mode and daemon mode. What the agent there would say on stderr has no way here: errors() is an
/// ended stream. The destructor ends it without waiting; what was written before still goes out, within 2 s.
class SecureChannel final : public remote::Channel {
 public:
  /// `address` is the far side's, numeric. kSystem: no descriptors are left.
  static Result<std::unique_ptr<SecureChannel>> make(const asio::any_io_executor& loop,
                                                     std::unique_ptr<ByteStream> stream, std::string address);
  ~SecureChannel() override;

  std::string address() const override { return address_; }
  Socket& link() override { return link_; }
  Socket& errors() override { return errors_; }
  Awaitable<remote::ChannelEnd> end() override;

  /// For whoever gives the channel away and has to end it later.
  std::weak_ptr<SecureLine> line() const { return line_; }

 private:
  SecureChannel(std::shared_ptr<SecureLine> line, Socket link, Socket errors, std::string address);

  std::shared_ptr<SecureLine> line_;
  Socket link_;
  Socket errors_;
  std::string address_;
};

}  // namespace ddp::launcher
