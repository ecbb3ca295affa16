#include "rendezvous/worker/worker_session.h"

#include <utility>

#include "base/result.h"

namespace ddp::rendezvous {
namespace {

/// Names a message in an error text.
std::string quoted_key(const char* word, std::uint32_t attempt) {
  return std::string("\"") + word + "\" for attempt " + std::to_string(attempt);
}

}  // namespace

std::vector<WorkerEvent> WorkerSession::receive(std::string_view bytes) {
  if (state_ != State::kIgnored) lines_.add(bytes);
  while (state_ != State::kIgnored) {
    const auto next = lines_.next();
    if (!next) {
      misbehaved(Misbehavior::kTooLong, "sent an invalid line over DDPLAUNCH_CONTROL: " + next.error().text +
                                            "; its further messages are ignored");
      state_ = State::kIgnored;
      break;
    }
    if (!*next) break;
    line(**next);
  }
  DDP_REQUIRE(troubles_ <= kMostTroubles && (!ready_ || attempt_), troubles_, ready_);
  return std::exchange(events_, {});
}

void WorkerSession::line(std::string_view text) {
  const auto word = decode_worker_line(text);
  if (!word) {
    misbehaved(Misbehavior::kBroken,
               "sent a line over DDPLAUNCH_CONTROL that is ignored: " + word.error().text);
    return;
  }
  if (state_ == State::kSilent && !std::holds_alternative<WorkerHello>(*word)) {
    misbehaved(Misbehavior::kNoHello, "sent a message over DDPLAUNCH_CONTROL before its hello; ignored");
    return;
  }
  std::visit([this](const auto& message) { hear(message); }, *word);
}

void WorkerSession::hear(const WorkerHello& hello) {
  if (state_ != State::kSilent) {
    misbehaved(Misbehavior::kSecondHello, "sent a second hello over DDPLAUNCH_CONTROL; ignored");
    return;
  }
  if (hello.version != kWorkerProtocol) {
    misbehaved(Misbehavior::kVersion, "speaks version " + std::to_string(hello.version) +
                                          " of the worker protocol, not " + std::to_string(kWorkerProtocol) +
                                          "; its messages are ignored");
    state_ = State::kIgnored;
    return;
  }
  hello_ = hello;
  state_ = State::kGreeted;
  events_.emplace_back(hello);
  send_waiting();
}

/// A step counts as activity in any attempt.
void WorkerSession::hear(const WorkerStep& step) {
  events_.emplace_back(step);
}

void WorkerSession::hear(const WorkerTrouble& trouble) {
  if (!is_present("failed", trouble.attempt)) return;
  if (state_ == State::kInAttempt && troubles_ < kMostTroubles) {
    ++troubles_;
    events_.emplace_back(trouble);
  } else if (state_ == State::kInAttempt) {
    misbehaved(Misbehavior::kTroubles, "sent " + quoted_key("failed", trouble.attempt) + " more than " +
                                           std::to_string(kMostTroubles) + " times; the rest is ignored");
  }
  if (state_ == State::kFree)
    misbehaved(Misbehavior::kOutOfTurn,
               "sent " + quoted_key("failed", trouble.attempt) + " after it had left the attempt; ignored");
}

void WorkerSession::hear(const WorkerRevoked& answer) {
  if (!is_present("revoked", answer.attempt)) return;
  if (state_ != State::kLeavingAttempt) {
    misbehaved(Misbehavior::kOutOfTurn,
               "sent " + quoted_key("revoked", answer.attempt) +
                   (state_ == State::kFree ? " twice; ignored" : " without an order; ignored"));
    return;
  }
  state_ = State::kFree;
  events_.emplace_back(answer);
}

void WorkerSession::hear(const WorkerReady& ready) {
  if (!is_present("ready", ready.attempt)) return;
  if (state_ == State::kLeavingAttempt && !ready_) return;  // it crossed the revoke order
  if (ready_ || state_ != State::kInAttempt) {
    misbehaved(Misbehavior::kOutOfTurn,
               "sent " + quoted_key("ready", ready.attempt) +
                   (ready_ ? " twice; ignored" : " after it had left the attempt; ignored"));
    return;
  }
  ready_ = true;
  events_.emplace_back(ready);
}

bool WorkerSession::is_present(const char* word, std::uint32_t attempt) {
  if (attempt_ == attempt) return true;
  misbehaved(Misbehavior::kForeign,
             "sent " + quoted_key(word, attempt) +
                 (attempt_ ? ", but is in attempt " + std::to_string(*attempt_) + "; ignored"
                           : ", but has no attempt yet; ignored"));
  return false;
}

void WorkerSession::misbehaved(Misbehavior misbehavior, std::string words) {
  const unsigned bit = 1U << static_cast<unsigned>(misbehavior);
  if ((misbehaved_ & bit) != 0) return;
  misbehaved_ |= bit;
  events_.emplace_back(WorkerMisbehaved{std::move(words)});
}

bool WorkerSession::can_rejoin() const {
  return state_ != State::kSilent && state_ != State::kIgnored && hello_.rejoin && !hello_.sharded;
}

void WorkerSession::begin(AttemptOrder order) {
  if (stopped_) return;
  if (state_ == State::kSilent) {
    waiting_attempt_ = std::move(order);
    waiting_revoke_.reset();
    return;
  }
  attempt_ = order.attempt;
  ready_ = false;
  troubles_ = 0;
  if (state_ != State::kIgnored) state_ = State::kInAttempt;
  send(std::move(order));
}

void WorkerSession::revoke(RevokeOrder order) {
  if (stopped_) return;
  if (state_ == State::kSilent) {
    // The worker may still send its hello in time and answer.
    if (waiting_attempt_ && waiting_attempt_->attempt == order.attempt && !waiting_revoke_)
      waiting_revoke_ = std::move(order);
    return;
  }
  if (state_ != State::kInAttempt || attempt_ != order.attempt || !can_rejoin()) return;
  state_ = State::kLeavingAttempt;
  send(std::move(order));
}

void WorkerSession::stop(StopOrder order) {
  if (stopped_) return;
  stopped_ = true;
  if (state_ == State::kSilent) {
    waiting_stop_ = std::move(order);
    return;
  }
  send(std::move(order));
}

void WorkerSession::send_waiting() {
  if (waiting_stop_) return send(*waiting_stop_);
  if (waiting_attempt_) begin(*std::exchange(waiting_attempt_, std::nullopt));
  if (waiting_revoke_) revoke(*std::exchange(waiting_revoke_, std::nullopt));
}

void WorkerSession::send(const AgentMessage& word) {
  DDP_REQUIRE(state_ != State::kSilent, word.index());  // orders wait for the hello
  if (state_ != State::kIgnored) output_ += encode_line(word);
}

std::string WorkerSession::take_output() {
  return std::exchange(output_, {});
}

}  // namespace ddp::rendezvous
