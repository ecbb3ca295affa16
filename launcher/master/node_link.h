#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/asio.h"
#include "base/byte_stream.h"
#include "base/result.h"
#include "launcher/lines/output_lines.h"
#include "launcher/supervisor/clock_offset.h"
#include "launcher/supervisor/node_limits.h"
#include "remote/start/fan_out.h"
#include "rendezvous/link/connection.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// The master's end of the link to one node: the channel that carries it, its liveness, the node's clock.
/// Loop thread; owned by the master, which runs the tasks that read and write it.
class NodeLink {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kFirstPings = 8;
  static constexpr std::size_t kMostErrors = 64u << 10;

  /// `incarnation` counts the links to the host. `first_pings`: round trips in a row at the start: the
  /// shortest of several is near the truth, and a first failure may come within milliseconds.
  NodeLink(std::size_t index, asio::any_io_executor executor, const std::string& host,
           std::uint32_t incarnation = 1, int first_pings = kFirstPings);

  /// The agent has said its hello line on `agent.channel`.
  void open(remote::StartedAgent agent);
  /// No more messages, in either direction. May be called twice.
  void close();
  bool opened() const { return connection_ != nullptr; }
  bool live() const { return live_; }
  rendezvous::Connection& connection() { return *connection_; }
  remote::Channel& channel() { return *channel_; }
  /// Sends unless the link is down.
  void send(const rendezvous::Message& message);

  void ping(std::uint64_t sequence);
  /// The last Ping was answered: only then may another one follow, for the node's lease hangs on that.
  bool answered() const { return answered_; }
  /// True: another ping at once makes the clocks' offset better.
  bool on_pong(const rendezvous::Pong& pong);
  /// Before the first round trip: the hello's clock, as if the way had taken no time.
  void guess_clock(std::uint64_t clock_ns);
  /// A moment of the node's clock on ours, never in the future, ± clock_error().
  std::chrono::nanoseconds to_ours(std::uint64_t clock_ns) const;
  std::chrono::nanoseconds clock_error() const;

  /// Lines that the agent's stderr completes, with the host's name before each; `bytes` empty: its end. After
  /// kMostErrors bytes one line that says so, then none: stderr is read all the same, for over SSH and TLS
  /// one that is not read stops the control link, too.
  std::string error_lines(std::string_view bytes);
  struct LinkEnd {
    Error why;
    bool workers_dead = false;  ///< its keeper has ended, and says by its exit code that no worker lives
    bool workers_left = false;  ///< the same, that it could not end them all
  };
  /// `error` ended the link; the channel says more about why, and stderr had the last words. May take for
  /// ever.
  Awaitable<LinkEnd> explain_end(Error error);

  const std::size_t index;
  const std::uint32_t incarnation;
  NodeLimits limits;
  bool greeted = false;          ///< its hello was reported
  bool gone = false;             ///< its end was reported
  bool asleep = false;           ///< it knows that we are about to be stopped
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
  const int first_pings_;
  bool answered_ = true;
  int pongs_ = 0;
  bool live_ = false;
};

}  // namespace ddp::launcher
