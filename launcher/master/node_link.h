#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/lines/output_lines.h"
#include "remote/start/fan_out.h"
#include "rendezvous/link/connection.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// Estimates how far a node's CLOCK_MONOTONIC is ahead of the master's, from exchanges of small messages. The
/// exchange with the shortest round trip is exact to half of that round trip (Cristian's algorithm). All
/// times are in nanoseconds.
class ClockOffset {
 public:
  using Time = std::chrono::nanoseconds;

  /// Adds an exchange: the question left at `sent`, and the answer, stamped `theirs` by the node's clock,
  /// arrived at `received`. The best sample wins, but its error grows with age, since clocks drift apart.
  void sample(Time sent, Time received, Time theirs) {
    const Time half = (received - sent) / 2;
    if (error_ && half >= *error_ + (received - sampled_) / kDrift) return;
    error_ = half;
    sampled_ = received;
    offset_ = theirs - (sent + half);
  }
  /// A message of unknown age gives a rough offset until the first sample.
  void guess(Time received, Time theirs) {
    if (!error_) offset_ = theirs - received;
  }

  Time to_ours(Time theirs) const { return theirs - offset_; }
  /// Returns the ± of to_ours at `now`: the sample's own error plus the possible drift since.
  Time error(Time now) const { return error_ ? *error_ + (now - sampled_) / kDrift : kUnknown; }

 private:
  static constexpr int kDrift = 10'000;                      ///< 100 ppm
  static constexpr Time kUnknown = std::chrono::seconds(1);  ///< while only guessed

  Time offset_{0};
  Time sampled_{0};
  std::optional<Time> error_;
};

/// Bounds what one node may send (sans-IO), so that a compromised node cannot exhaust the master's memory or
/// disk. The codec bounds each field; this class bounds their sum. All limits are far above what our agent
/// sends. The class also counts output for the credit. Output beyond the credit is no error, because agents
/// send the contents of the workers' pipes at a stop. The console and the files bound the output
/// (ConsoleQueue, JobWriter).
class NodeLimits {
 public:
  static constexpr std::size_t kNotices = 5'000;            ///< notices of one job that are shown or kept
  static constexpr std::size_t kNoticeBytes = 4u << 10;     ///< bytes of one notice; the rest is cut
  static constexpr std::size_t kInspected = 64u << 20;      ///< bytes of one inspection
  static constexpr std::size_t kWorkerUpdates = 64u << 20;  ///< bytes of worker starts and ends in one job
  static constexpr std::uint32_t kWorkers = 4'096;          ///< workers, and GPUs, of one node
  static constexpr std::uint32_t kCpus = 65'536;
  /// Bytes of messages that the master keeps of all nodes in one attempt, and the least for each node.
  static constexpr std::size_t kKeptOfAll = 64u << 20;
  static constexpr std::size_t kKeptAtLeast = 128u << 10;
  static constexpr std::size_t kKeptAtMost = 8u << 20;

  explicit NodeLimits(std::size_t nodes = 1)
      : kept_limit_(std::clamp(kKeptOfAll / std::max<std::size_t>(nodes, 1), kKeptAtLeast, kKeptAtMost)) {}

  /// The node is asked to inspect its workers, and may send what an inspection may have, once more.
  void begin_inspection() {
    inspected_ = 0;
    kept_ -= std::exchange(collected_, 0);  // the master drops what the one before has told
  }
  /// A new link to the node begins; the counts for the whole job continue.
  void begin_incarnation() { taken_ = {}; }

  /// kDropFirst: as kDrop, and the user has not been told in this attempt. kCut: keep what cut() leaves.
  enum class Admission : std::uint8_t { kTake, kDrop, kDropFirst, kCut };
  /// Counts a message. Diagnostics beyond the limit of the attempt are dropped, but evidence and ends,
  /// which name a worker's cause of death, are only cut. kProtocol: the message exceeds what our agent would
  /// send, and the caller ends the link.
  Result<Admission> admit(const rendezvous::Message& message);
  /// Shortens the texts of a WorkerEvidence or WorkerExited. A cut exception still begins with its type and
  /// message.
  static void cut(rendezvous::Message& message);
  /// Bytes of evidence that the master keeps of this node in one attempt.
  std::size_t kept_limit() const { return kept_limit_; }
  /// Returns the credit of a stream to give back, at most what one message can carry.
  std::uint32_t give_back(std::uint8_t stream);
  /// Returns the bytes of a stream that are not yet given back.
  std::uint64_t taken(std::uint8_t stream) const { return taken_[stream - 1u]; }

  enum class NoticeDecision : std::uint8_t { kYes, kLast, kNo };
  /// Decides for each Notice whether it is shown; none is shown after kLast.
  NoticeDecision notice();

 private:
  bool keep(std::uint32_t attempt, std::size_t bytes);
  Admission keep_or_drop(std::uint32_t attempt, std::size_t bytes, bool collected = false);

  std::size_t kept_limit_;
  std::array<std::uint64_t, 2> taken_{};
  std::size_t notices_ = 0;
  std::size_t worker_updates_ = 0;
  std::uint32_t inspected_attempt_ = 0;
  std::size_t inspected_ = 0;
  std::uint32_t kept_attempt_ = 0;
  std::size_t kept_ = 0;
  std::size_t collected_ = 0;  ///< part of kept_: collectives, and what an inspection tells
  std::size_t cut_ = 0;        ///< bytes of cut evidence
  bool dropped_ = false;       ///< something was dropped in kept_attempt_
};

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
  /// Ends the probe, and the count of missed pings: the node lives.
  void end_silence();
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
