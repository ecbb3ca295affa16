#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/lines/output_lines.h"
#include "launcher/supervisor/clock_offset.h"
#include "launcher/supervisor/node_limits.h"
#include "remote/start/fan_out.h"
#include "rendezvous/link/connection.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Asks the kernel of a silent node for an answer: connects to a port there, and closes at once. An accepted
/// connection and a refused one both prove that the host runs and that the network reaches it.
///
/// The link of a silent node cannot tell this. After an outage the kernels at both ends may wait for as long
/// again before they repeat what was lost (docs/developers/protocol.md, "Liveness"). A new connection has no
/// such wait. Loop thread.
class ReachabilityProbe {
 public:
  explicit ReachabilityProbe(asio::any_io_executor loop) : loop_(std::move(loop)) {}
  ~ReachabilityProbe() { cancel(); }
  ReachabilityProbe(const ReachabilityProbe&) = delete;
  ReachabilityProbe& operator=(const ReachabilityProbe&) = delete;

  /// Connects to `port` at the numeric `address`, and calls `answered` if the kernel there answers. It ends
  /// the connection that was tried before: the interval of the calls is the limit of each.
  void begin(const std::string& address, std::uint16_t port, std::function<void()> answered);
  void cancel();

 private:
  struct Attempt;
  static void await(const std::shared_ptr<Attempt>& attempt);

  asio::any_io_executor loop_;
  std::shared_ptr<Attempt> attempt_;
};

/// The master's end of the link to one node: its channel, its liveness, and the node's clock. It is used on
/// the loop thread. The master owns it and runs the tasks that read and write it.
class NodeLink {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostErrors = 64u << 10;

  /// `incarnation` counts the links to the host. `nodes` is the number of hosts: a link of many has less
  /// memory and fewer round trips at the start.
  NodeLink(std::size_t index, asio::any_io_executor executor, const std::string& host,
           std::uint32_t incarnation = 1, std::size_t nodes = 1);

  /// Opens the link after the agent's hello line on `agent.channel`.
  void open(remote::StartedAgent agent);
  /// Ends messages in both directions. May be called twice.
  void close();
  bool opened() const { return connection_ != nullptr; }
  bool live() const { return live_; }
  rendezvous::Connection& connection() { return *connection_; }
  remote::Channel& channel() { return *channel_; }
  /// Sends unless the link is down.
  void send(const rendezvous::Message& message);

  void ping(std::uint64_t sequence);
  /// True when the last Ping was answered. Only then may another one follow, because the node's lease depends
  /// on it.
  bool answered() const { return answered_; }
  /// A Ping was due, but the last one is not answered. Returns how often this happened since the last byte.
  int miss_ping() { return ++missed_pings_; }
  /// A byte arrived.
  void heard();
  /// Returns whether a probe tells anything about the node. It tells nothing behind a jump host, a proxy,
  /// srun or a node's own connection. A node without a network in between needs no probe: a silent one hangs.
  bool can_be_probed() const;
  /// Asks the silent node's kernel for an answer, at most until the next call or the next byte.
  void probe(std::function<void()> answered);
  /// Returns true if another immediate ping improves the clock offset.
  bool on_pong(const rendezvous::Pong& pong);
  /// Sets the clock offset from the hello, before the first round trip; assumes no delay.
  void guess_clock(std::uint64_t clock_ns);
  /// Converts a time of the node's clock to the master's, ± clock_error(). The result is never in the future.
  std::chrono::nanoseconds to_ours(std::uint64_t clock_ns) const;
  std::chrono::nanoseconds clock_error() const;

  /// Returns the completed lines of the agent's stderr, each prefixed with the host's name; empty `bytes`
  /// mean its end. After kMostErrors bytes it returns one line that says so, then none. The caller must read
  /// stderr all the same: over SSH and TLS an unread stderr stops the control link too.
  std::string error_lines(std::string_view bytes);
  struct LinkEnd {
    Error why;
    bool workers_dead = false;  ///< its keeper's exit code says that no worker lives
    bool workers_left = false;  ///< its keeper's exit code says that some could not be killed
  };
  /// Explains the end of the link by `error`: the channel may know the reason, and stderr has the last lines.
  /// May never complete.
  Awaitable<LinkEnd> explain_end(Error error);

  const std::size_t index;
  const std::uint32_t incarnation;
  NodeLimits limits;
  bool greeted = false;          ///< its hello was reported
  bool gone = false;             ///< the link's end was reported
  asio::steady_timer end_timer;  ///< bounds explain_end

 private:
  std::string keeper_says() const;

  std::unique_ptr<remote::Channel> channel_;
  std::unique_ptr<rendezvous::Connection> connection_;
  const std::string host_;
  remote::TailLines errors_;
  LineAssembler error_lines_;
  std::size_t error_bytes_ = 0;
  ClockOffset clock_;
  std::chrono::nanoseconds pinged_{0};
  std::uint64_t ping_ = 0;
  const std::size_t nodes_;
  bool answered_ = true;
  int missed_pings_ = 0;
  std::unique_ptr<ReachabilityProbe> probe_;  ///< only while the node is silent
  int pongs_ = 0;
  bool live_ = false;
};

}  // namespace ddp::launcher
