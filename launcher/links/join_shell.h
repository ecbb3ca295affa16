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
#include "launcher/link_protocol/join_table.h"
#include "remote/shells/remote_shell.h"
#include "rendezvous/link/tcp_listener.h"
#include "rendezvous/secure/link_token.h"
#include "rendezvous/secure/secure_link.h"

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

/// The master that a node joins, and the node's identity.
struct JoinGoal {
  std::string host;  ///< MASTER_ADDR
  std::uint16_t port = 0;
  rendezvous::JoinAs as;
  JoinRequest request;
};

/// A link on which the master has assigned a slot to this node. The agent's hello line comes next.
struct JoinedLink {
  std::unique_ptr<ByteStream> stream;
  int rank = 0;
  std::string job_id;  ///< the job's name at the master
};

/// Joins a job's master over TCP (per-node mode). Waits until `deadline` for a master that does not listen
/// yet. A slot that is taken is requested again for some seconds, because the master may not miss the
/// replaced process yet. Errors: those of secure_join; kUsage if the master has no slot for this node;
/// kAgentMismatch for another version. `goal` and `resolve` must outlive the call.
Awaitable<Result<JoinedLink>> join_master(std::shared_ptr<const rendezvous::SecureContext> context,
                                          const rendezvous::Resolve& resolve, const JoinGoal& goal,
                                          std::chrono::steady_clock::time_point deadline);

/// Writes all of `bytes`; for the few lines before the framed protocol.
Awaitable<error_code> write_line(ByteStream& stream, std::string bytes);
/// Reads the next line without its newline, at most kMaxJoinLine bytes. The peer must wait for an answer
/// before it sends more. Error kLinkLost with sys 0: the link ended before its first byte.
Awaitable<Result<std::string>> read_line(ByteStream& stream);

/// Per-node mode: the hosts of a job are not reached, but join by themselves. open() of "node3" waits until
/// the ddplaunch of that node has joined at the control port, and returns its link. The command line is not
/// used, because the node runs its own agent. After a link has ended, open() waits for the node's next
/// incarnation: a ddplaunch that the node's supervisor restarts. Loop thread.
class JoinShell final : public remote::RemoteShell {
 public:
  struct Options {
    rendezvous::TcpListener listener;  ///< the control port
    rendezvous::LinkToken token;
    std::string link_job;  ///< the name by which nodes know the job
    JoinTable::JoinTerms terms;
    std::string where;  ///< of the port, for messages: "10.0.0.2:29500"
    std::string reach;  ///< advice after `where` about awaited nodes; empty: all machines reach it
    /// Gets lines about unproven and refused nodes, limited in number; must not block.
    std::function<void(const std::string&)> on_note;
  };

  /// Nodes may join when this returns. Errors: kInternal, kSystem.
  static Result<std::unique_ptr<JoinShell>> make(const asio::any_io_executor& loop, Options options);
  ~JoinShell() override;

  /// Errors: kTimeout at the deadline, kCancelled.
  Awaitable<Result<std::unique_ptr<remote::Channel>>> open(remote::Host host, std::vector<std::string> argv,
                                                           remote::Deadline deadline) override;
  const char* step(const std::string& host, bool opened) const override {
    return opened ? RemoteShell::step(host, opened) : "has not joined";
  }
  const char* intermediary() const override { return "the ddplaunch of that node"; }

 private:
  struct ListenerState;
  explicit JoinShell(std::shared_ptr<ListenerState> shared);

  std::shared_ptr<ListenerState> shared_;
};

}  // namespace ddp::launcher
