/// Messages between a worker and the agent of its node over DDPLAUNCH_CONTROL: one JSON object per line, as
/// described in docs/developers/worker_protocol.md. Plain data and the codec of both ends. Unknown keys are
/// ignored.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace ddp {

/// A histogram of the durations of steps (docs/users/metrics.md), with buckets so narrow that percentiles are
/// right within 10 %. Only buckets that count something are kept, and sent.
struct StepDurations {
  /// Buckets of a decade: each bound is 9.6 % above the one before.
  static constexpr int kPerDecade = 25;
  /// Buckets with a bound, from 1 ms to 631 s; one more has the longer steps. The worker protocol names them
  /// (docs/developers/worker_protocol.md).
  static constexpr std::uint32_t kBounds = 146;
  /// More steps or seconds than these in one report cannot be right.
  static constexpr std::uint64_t kMost = 1'000'000'000;

  /// Steps by bucket: of at most bound(i) seconds and more than bound(i - 1). Each at least 1.
  std::map<std::uint32_t, std::uint64_t> counts{};
  double seconds = 0;  ///< of all steps together
  double waited = 0;   ///< the part of `seconds` in which the worker waited for others; 0: not reported

  /// Seconds. `bucket`: less than kBounds.
  static double bound(std::uint32_t bucket) {
    return 0.001 * std::pow(10, static_cast<double>(bucket) / kPerDecade);
  }
  static std::uint32_t bucket_of(double seconds) {
    // A bound itself belongs to its bucket, though its logarithm is rounded.
    const double place = std::ceil(kPerDecade * std::log10(seconds / 0.001) - 1e-9);
    return static_cast<std::uint32_t>(std::clamp(place, 0.0, static_cast<double>(kBounds)));
  }
  /// Counts `steps` (at least 1) that took `together` with their mean. Ignores more than kMost.
  void add(std::chrono::nanoseconds together, std::uint64_t steps) {
    if (steps > kMost) return;
    const double all = std::max(0.0, std::chrono::duration<double>(together).count());
    counts[bucket_of(all / static_cast<double>(steps))] += steps;
    seconds += all;
  }
  /// Counts further steps of a report. Returns false, and counts nothing, if there is no such bucket, or no
  /// such number of steps.
  bool add(std::uint64_t bucket, std::uint64_t steps) {
    if (bucket > kBounds || steps == 0 || steps > kMost) return false;
    counts[static_cast<std::uint32_t>(bucket)] += steps;
    return true;
  }
  void add(const StepDurations& others) {
    for (const auto& [bucket, steps] : others.counts)
      counts[bucket] += steps;
    seconds += others.seconds;
    waited += others.waited;
  }
  std::uint64_t steps() const {
    std::uint64_t sum = 0;
    for (const auto& [bucket, steps] : counts)
      sum += steps;
    return sum;
  }
  bool operator==(const StepDurations&) const = default;
};

/// Measures the steps of one worker from reports of how many are complete (sans-IO). Times are of one
/// monotonic clock.
class StepTimer {
 public:
  /// The first report after forget() begins the measurement. `waited`: seconds that the worker has waited for
  /// others since its start, if it measures them.
  void at(std::uint64_t step, std::chrono::nanoseconds now, double waited = 0) {
    if (last_ && last_->first == step) return;
    if (last_ && last_->first < step) {
      durations_.add(now - last_->second, step - last_->first);
      durations_.waited = std::min(durations_.waited + std::max(0.0, waited - waited_), durations_.seconds);
    }
    last_ = {step, now};
    waited_ = waited;
  }
  /// The time until the next report belongs to no step.
  void forget() { last_.reset(); }
  /// Adds steps that the worker has measured itself.
  void add(const StepDurations& measured) { durations_.add(measured); }
  /// Returns the steps since the last call.
  StepDurations take() { return std::exchange(durations_, {}); }

 private:
  std::optional<std::pair<std::uint64_t, std::chrono::nanoseconds>> last_;  ///< steps that were complete
  double waited_ = 0;                                                       ///< as of then
  StepDurations durations_;
};

}  // namespace ddp

namespace ddp::rendezvous {

/// Includes the line end. Longer lines are an error at the receiver; the encoder cuts texts to fit.
inline constexpr std::size_t kWorkerLineBytes = 4096;
inline constexpr int kWorkerProtocol = 1;
/// Number of "failed" messages of one worker in one attempt that count; later ones are ignored.
inline constexpr unsigned kMostTroubles = 10;
/// The time that a worker that lost a peer waits for the order that follows. Then it ends with its own exit
/// code.
inline constexpr std::chrono::seconds kOrderTime{10};

// ---- worker to agent

/// {"hello":1,"pid":P,"rejoin":true,"sharded":false}: the first line.
struct WorkerHello {
  int version = kWorkerProtocol;
  std::uint32_t pid = 0;  ///< as the worker sees it; for messages only
  bool rejoin = false;    ///< it can leave an attempt and join another
  bool sharded = false;   ///< parts of its state exist nowhere else (ZeRO), so it cannot rejoin
  bool operator==(const WorkerHello&) const = default;
};
/// {"step":N,"in":"all-reduce","loss":0.5,"durations":[[49,3]],"seconds":0.27,"waited":0.1}: reports
/// activity; N steps are complete. At most ten a second.
struct WorkerStep {
  std::uint64_t step = 0;
  std::string phase = {};           ///< what the worker does, in a few words; empty: not reported
  std::optional<double> loss = {};  ///< of the last step
  /// Of the steps since the last such message; unset: the worker does not measure them.
  std::optional<StepDurations> durations = {};
  bool operator==(const WorkerStep&) const = default;
};
/// {"failed":A,"error":"…","peers":[3]}: only evidence; the worker then waits for the order that follows.
/// With "retry":false it ends, and another attempt would fail the same way.
struct WorkerTrouble {
  std::uint32_t attempt = 0;
  std::string error;
  std::vector<std::uint32_t> peers = {};  ///< ranks that it considers lost
  bool retry = true;                      ///< another attempt may succeed
  bool operator==(const WorkerTrouble&) const = default;
};
/// {"revoked":A,"step":N}: the worker has left attempt A. "step":null: it holds no training state.
struct WorkerRevoked {
  std::uint32_t attempt = 0;
  std::optional<std::uint64_t> step = {};
  bool operator==(const WorkerRevoked&) const = default;
};
/// {"ready":A}: the worker takes part in attempt A and has the state.
struct WorkerReady {
  std::uint32_t attempt = 0;
  bool operator==(const WorkerReady&) const = default;
};
using WorkerMessage = std::variant<WorkerHello, WorkerStep, WorkerTrouble, WorkerRevoked, WorkerReady>;

// ---- agent to worker

/// {"attempt":1,"rank":2,"world":4,"local_rank":0,"local_world":2,"node_rank":1,"nodes":2,
///  "store":"10.0.0.2:29500","agent_store":true,"from":0}
struct AttemptOrder {
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world = 1;
  std::uint32_t node_rank = 0;
  std::uint32_t nodes = 1;
  std::string store;                       ///< "ADDRESS:PORT"; IPv6 in brackets
  bool agent_store = true;                 ///< false: rank 0 must serve the store itself
  std::optional<std::uint32_t> from = {};  ///< rank that holds the training state; unset: none does
  bool operator==(const AttemptOrder&) const = default;
};
/// {"revoke":0,"reason":"rank 3 on gpu02 was killed by SIGKILL","deadline_ms":5000}
struct RevokeOrder {
  std::uint32_t attempt = 0;
  std::string reason;
  std::uint32_t deadline_ms = 0;  ///< a worker that has not answered by then is killed
  bool operator==(const RevokeOrder&) const = default;
};
/// {"stop":"user","grace_ms":25000}: A signal accompanies it, SIGKILL follows after the
/// grace.
struct StopOrder {
  std::string reason;
  std::uint32_t grace_ms = 0;
  bool operator==(const StopOrder&) const = default;
};
using AgentMessage = std::variant<AttemptOrder, RevokeOrder, StopOrder>;

// ---- the codec

/// Returns the line including its end.
std::string encode_line(const WorkerMessage& word);
std::string encode_line(const AgentMessage& word);
/// `line` has no line end. Error: kProtocol with the reason. The line is no JSON object, has none of the
/// known first keys, or has a value of another type or out of range.
Result<WorkerMessage> decode_worker_line(std::string_view line);
/// Decodes a datagram to DDPLAUNCH_METRICS, which is a step's line with or without its end.
Result<WorkerStep> decode_worker_report(std::string_view datagram);
Result<AgentMessage> decode_agent_line(std::string_view line);

/// Splits a stream of bytes into lines. After an error, add no more bytes.
class WorkerLines {
 public:
  void add(std::string_view bytes) {
    DDP_REQUIRE(buffer_.size() < kWorkerLineBytes, buffer_.size());  // next() has taken all whole lines
    buffer_ += bytes;
  }
  /// Returns the next whole line without its end, or nothing if none is complete. Error: kProtocol, the line
  /// is too long; nothing more can be read.
  Result<std::optional<std::string>> next();

 private:
  std::string buffer_;
};

/// A misbehavior to show to the user, as the rest of a sentence that begins with the worker's name. At most
/// one for each kind in the life of a worker.
struct WorkerMisbehaved {
  std::string words;
  bool operator==(const WorkerMisbehaved&) const = default;
};
using WorkerEvent =
    std::variant<WorkerHello, WorkerStep, WorkerTrouble, WorkerRevoked, WorkerReady, WorkerMisbehaved>;

/// The agent's view of one worker process over one connection (docs/developers/worker_protocol.md). Sans-IO:
/// received bytes return events, orders produce bytes for take_output(). The owner keeps the deadlines.
///
/// Messages count only after the hello. A message for another attempt, or out of turn, returns no event,
/// except for a WorkerMisbehaved the first time in the session. A message that merely crossed an order
/// returns nothing.
class WorkerSession {
 public:
  enum class State : std::uint8_t {
    kSilent,          ///< no hello yet; orders wait for it
    kGreeted,         ///< hello received, but no attempt yet
    kInAttempt,       ///< an attempt was ordered
    kLeavingAttempt,  ///< the attempt was revoked, and the worker has not answered
    kFree,            ///< the worker has left the attempt
    kIgnored,  ///< other version or too long a line: its messages are ignored, and nothing is sent to it
  };

  /// Takes bytes from the worker.
  std::vector<WorkerEvent> receive(std::string_view bytes);

  /// Orders the worker to take part in an attempt. Before the hello the order is kept and replaces an earlier
  /// one.
  void begin(AttemptOrder order);
  /// Orders the worker to leave the attempt. Does nothing for another attempt than the last ordered one, if
  /// repeated, or if the worker said that it cannot leave.
  void revoke(RevokeOrder order);
  /// The last order: nothing is sent afterwards.
  void stop(StopOrder order);

  /// Returns the bytes to send since the last call.
  std::string take_output();

  State state() const { return state_; }
  /// Returns whether the worker said that it can leave an attempt.
  bool can_rejoin() const;
  /// Returns the attempt of the latest order sent to the worker.
  std::optional<std::uint32_t> attempt() const { return attempt_; }

 private:
  enum class Misbehavior : std::uint8_t {
    kBroken,
    kTooLong,
    kNoHello,
    kSecondHello,
    kVersion,
    kForeign,
    kOutOfTurn,
    kTroubles,
  };
  void line(std::string_view text);
  void receive(const WorkerHello& hello);
  void receive(const WorkerStep& step);
  void receive(const WorkerTrouble& trouble);
  void receive(const WorkerRevoked& answer);
  void receive(const WorkerReady& ready);
  bool is_present(const char* word, std::uint32_t attempt);
  void misbehaved(Misbehavior misbehavior, std::string words);
  void send(const AgentMessage& word);
  void send_waiting();

  State state_ = State::kSilent;
  WorkerLines lines_;
  std::vector<WorkerEvent> events_;
  std::string output_;
  WorkerHello hello_;
  std::optional<std::uint32_t> attempt_;
  bool ready_ = false;       ///< it reported ready in this attempt
  unsigned troubles_ = 0;    ///< number of failures that it reported in this attempt
  unsigned misbehaved_ = 0;  ///< kinds already reported, one bit each
  bool stopped_ = false;
  // Orders that wait for the hello.
  std::optional<AttemptOrder> waiting_attempt_;
  std::optional<RevokeOrder> waiting_revoke_;
  std::optional<StopOrder> waiting_stop_;
};

}  // namespace ddp::rendezvous
