#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/worker/worker_protocol.h"

namespace ddp::rendezvous {

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
  void hear(const WorkerHello& hello);
  void hear(const WorkerStep& step);
  void hear(const WorkerTrouble& trouble);
  void hear(const WorkerRevoked& answer);
  void hear(const WorkerReady& ready);
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
