#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/worker/worker_protocol.h"

namespace ddp::rendezvous {

/// Something that a person should read: what the worker did, as the rest of a sentence that begins with its
/// name. Once for each kind of misbehavior in a worker's life.
struct WorkerMisbehaved {
  std::string words;
  bool operator==(const WorkerMisbehaved&) const = default;
};
using WorkerEvent =
    std::variant<WorkerHello, WorkerStep, WorkerTrouble, WorkerRevoked, WorkerReady, WorkerMisbehaved>;

/// The agent's view of one worker process over one connection (docs/worker_protocol.md). Sans-IO: bytes in
/// give events, orders give bytes for take_output(). Deadlines are the owner's.
///
/// Words count from the hello on. Those of another attempt, or out of turn, give no event but, the first time
/// in the session, a WorkerMisbehaved; those that have only crossed an order on their way give nothing at
/// all.
class WorkerSession {
 public:
  enum class State : std::uint8_t {
    kSilent,          ///< no hello yet; orders wait for it
    kGreeted,         ///< a hello, but no attempt yet
    kInAttempt,       ///< an attempt was ordered
    kLeavingAttempt,  ///< and revoked, which is not answered yet
    kFree,            ///< it has let go
    kIgnored,  ///< of another version, or a line too long: nothing it says counts, and it is told nothing
  };

  /// Bytes that came from the worker.
  std::vector<WorkerEvent> receive(std::string_view bytes);

  /// To take part in an attempt. Before the hello: kept, in place of the one before.
  void begin(AttemptOrder order);
  /// To let go of it. Does nothing for another attempt than the one last ordered, twice, or to who said that
  /// it cannot.
  void revoke(RevokeOrder order);
  /// The last order: nothing is said to it after that.
  void stop(StopOrder order);

  /// What is to be sent since the last call.
  std::string take_output();

  State state() const { return state_; }
  /// It has said that it can let go of an attempt.
  bool can_rejoin() const;
  /// Of the latest order that it was sent.
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
  bool ready_ = false;       ///< it has said so in this attempt
  unsigned troubles_ = 0;    ///< and so often that it failed
  unsigned misbehaved_ = 0;  ///< kinds that were told, a bit for each
  bool stopped_ = false;
  // For after the hello.
  std::optional<AttemptOrder> waiting_attempt_;
  std::optional<RevokeOrder> waiting_revoke_;
  std::optional<StopOrder> waiting_stop_;
};

}  // namespace ddp::rendezvous
