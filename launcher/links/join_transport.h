#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/links/join_table.h"
#include "remote/transports/transport.h"
#include "rendezvous/link/secure_link.h"

namespace ddp::launcher {

/// The TLS stream of a joined node, shared by its SecureChannel and the table of nodes. Loop thread.
class SecureLine : public std::enable_shared_from_this<SecureLine> {
 public:
  using Clock = std::chrono::steady_clock;

  SecureLine(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream);
  /// Reads ahead until the owner reads, so that the end of a node that waits is noticed.
  void watch() { spawn(changed_.get_executor(), read_ahead(shared_from_this())); }
  /// The stream for the owner. As on a socket, every end is an end of file; the channel's end() knows more.
  std::unique_ptr<ByteStream> stream();

  /// Returns whether the end of the stream was seen.
  bool ended() const { return ended_; }
  /// `handler` is called once at the stream's end, even if the channel was destroyed before.
  void on_end(std::function<void()> handler) { on_end_ = std::move(handler); }
  /// When the last byte arrived from the peer.
  Clock::time_point last_heard() const { return last_heard_; }
  /// Ends the stream for the reason `why`, which the channel's end() then reports.
  void cut(Error why);
  /// Call when the owner has nothing more to send or to receive.
  void close();

 private:
  friend class SecureChannel;
  class Owned;

  static Awaitable<> read_ahead(std::shared_ptr<SecureLine> self);
  Awaitable<ByteStream::Transferred> read_some(asio::mutable_buffer buffer);
  void finish(const error_code& error);

  std::unique_ptr<ByteStream> stream_;
  asio::steady_timer changed_;  ///< never expires; cancelled at the end, and when read_ahead() has read
  std::string early_;           ///< read ahead
  std::function<void()> on_end_;
  std::optional<Error> broken_;  ///< why the stream ended, unless it ended cleanly
  Clock::time_point last_heard_ = Clock::now();
  bool reading_ahead_ = false;
  bool opened_ = false;  ///< the owner reads
  bool closed_ = false;  ///< by the owner
  bool ended_ = false;
};

/// A node that has joined over TLS (or any other ByteStream), as a remote::Channel, for per-node mode. Its
/// owner uses stream(), so that a link costs one descriptor, even for a master of thousands of nodes:
/// socket() and errors() are never open. The destructor closes the stream.
class SecureChannel final : public remote::Channel {
 public:
  /// `address` is the peer's, numeric.
  SecureChannel(const asio::any_io_executor& loop, std::unique_ptr<ByteStream> stream, std::string address);
  ~SecureChannel() override { line_->close(); }

  std::string address() const override { return address_; }
  Socket& socket() override { return none_; }
  Socket& errors() override { return none_; }
  std::unique_ptr<ByteStream> stream() override { return line_->stream(); }
  Awaitable<remote::ChannelEnd> end() override;

  /// For an owner that gives the channel away and must end it later.
  std::weak_ptr<SecureLine> line() const { return line_; }

 private:
  std::shared_ptr<SecureLine> line_;
  Socket none_;
  std::string address_;
};

/// Per-node mode: the hosts of a job are not reached, but join by themselves. open() of "node3" waits until
/// the ddplaunch of that node has joined at the control port, and returns its link. The command line is not
/// used, because the node runs its own agent. After a link has ended, open() waits for the node's next
/// incarnation: a ddplaunch that the node's supervisor restarts. Loop thread.
class JoinTransport final : public remote::Transport {
 public:
  struct Options {
    rendezvous::SecureAcceptorOptions port;  ///< its on_joined is not used; on_note must not block
    JoinTable::JoinTerms terms;
    std::string reach;  ///< advice after the port's `where` about awaited nodes; empty: all machines reach it
  };

  /// Nodes may join when this returns. Errors: kInternal, kSystem.
  static Result<std::unique_ptr<JoinTransport>> make(const asio::any_io_executor& loop, Options options);
  ~JoinTransport() override;

  /// Errors: kTimeout at the deadline, kCancelled.
  Awaitable<Result<std::unique_ptr<remote::Channel>>> open(remote::Host host, std::vector<std::string> argv,
                                                           remote::Deadline deadline) override;
  const char* step(const std::string& host, bool opened) const override {
    return opened ? Transport::step(host, opened) : "has not joined";
  }
  const char* intermediary() const override { return "the ddplaunch of that node"; }

 private:
  struct ListenerState;
  explicit JoinTransport(std::shared_ptr<ListenerState> shared);

  std::shared_ptr<ListenerState> shared_;
};

}  // namespace ddp::launcher
