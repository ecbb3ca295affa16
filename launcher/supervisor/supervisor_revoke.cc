// The part of the Supervisor that lets workers survive a failed attempt (docs/developers/worker_protocol.md).
#include <algorithm>
#include <utility>

#include "base/exit_status.h"
#include "base/format_text.h"
#include "launcher/supervisor/start_messages.h"
#include "launcher/supervisor/supervisor.h"

namespace ddp::launcher {
namespace {

/// Time beyond kRevokeTime in which agents kill, reap and drain. After it their nodes count as lost.
constexpr std::chrono::seconds kRevokeSlack{10};

}  // namespace

/// Does the same as stop_all, but workers that can leave the attempt survive.
void Supervisor::revoke_all(const std::string& reason, Time now) {
  state_ = State::kStopping;
  revoking_ = true;
  revoked_at_ = now;
  detail("revoking attempt " + std::to_string(attempt_) + ": " + reason);
  failures_.stop_ordered(now, Survivors::kRevokeTime);
  deadline_ = now + Survivors::kRevokeTime + kRevokeSlack;
  for (const rendezvous::RankAssignment& assignment : world_.assignments) {
    Node& node = nodes_[assignment.host];
    if (node.state == NodeState::kSpawned && !node.ending) {
      rendezvous::Revoke revoke{attempt_, to_ms(Survivors::kRevokeTime), reason, {}};
      for (const std::uint32_t rank : hung_)
        if (runs(assignment.host, rank)) revoke.kill.push_back(rank);
      send(assignment.host, std::move(revoke));
    } else if (node.ending) {  // its workers are of an earlier attempt; it does not know this one
      inform(assignment.host, rendezvous::NodeEnded{});
    } else if (node.state == NodeState::kAccepted) {
      node.state = NodeState::kEnded;
      inform(assignment.host, rendezvous::NodeEnded{});
    } else if (node.state == NodeState::kWaiting) {  // it does not know this attempt
      inform(assignment.host, rendezvous::NodeWaits{});
    }
  }
  hung_.clear();
}

/// Ends survivors that have no attempt to take part in.
void Supervisor::end_survivors(std::size_t index, std::chrono::milliseconds grace,
                               const std::string& reason) {
  Node& node = nodes_[index];
  send(index, rendezvous::Stop{node.spawned, to_ms(grace), reason});
  node.state = NodeState::kSpawned;
  node.ending = true;
  node.survivors.clear();
}

/// The message comes again when a survivor on the node has died.
void Supervisor::handle(std::size_t index, const rendezvous::AttemptRevoked& message, Time) {
  Node& node = nodes_[index];
  const bool again = node.state == NodeState::kWaiting;
  if (message.attempt != node.spawned || node.ending || node.lost) return;
  const bool asked = node.state == NodeState::kSpawned && state_ == State::kStopping && revoking_;
  if (!again && !asked) return;
  node.state = NodeState::kWaiting;
  node.survivors = message.survivors;
  std::erase_if(node.survivors, [&node](const rendezvous::Survivor& survivor) {
    return survivor.local_rank >= static_cast<std::uint32_t>(node.ran.local_world_size);
  });
  if (!again) inform(index, rendezvous::NodeWaits{});
}

/// The loss costs no restart: a new worker replaces the survivor in the attempt that is about to begin.
void Supervisor::report_lost_survivor(std::size_t index, const rendezvous::WorkerExited& message) {
  if (message.attempt != nodes_[index].spawned || (message.code == 0 && message.signal == 0)) return;
  const ExitStatus end = message.signal != 0 ? ExitStatus::signaled(message.signal, message.core)
                                             : ExitStatus::exited(message.code);
  say("rank " + std::to_string(message.rank) + " on " + nodes_[index].name + ' ' + end.text() +
      " while it waited for the next attempt");
}

/// The last survivor on the node has died: no process is left to end, and no state to continue from.
void Supervisor::survivors_gone(std::size_t index, std::uint32_t left, Time now) {
  Node& node = nodes_[index];
  const bool begun = starting() && node.participant && !node.lost;  // the Membership began the next attempt
  node.survivors.clear();
  node.state = begun ? NodeState::kAccepted : NodeState::kEnded;
  if (begun && left > 0) {
    const Error error{ErrorCode::kLinkLost, "processes of the previous attempt could not be killed", 0};
    node.reason_reported = true;
    lose(index, error, now);
    return send_away(index, error);
  }
  if (!begun && !node.lost) inform(index, rendezvous::NodeEnded{left});
  if (node.lost && left == 0) inform(index, rendezvous::WorkersGone{});
}

/// Shortens the stop when the job has ended between two attempts and only survivors are still being ended.
void Supervisor::shorten_stop(Time now) {
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].ending) send(i, rendezvous::Stop{nodes_[i].spawned, 0, "killed by the user"});
  deadline_ = now + kRevokeSlack;
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkersGreeted& message, Time) {
  const auto participant = running_participant(index, message.attempt);
  if (!participant || !running()) return;
  const bool before = survivors_.can_survive();
  survivors_.greeted(*participant);
  if (!before && survivors_.can_survive())
    detail("all workers can survive the failure of a peer; attempts are revoked from now on");
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkersReady& message, Time now) {
  const auto participant = running_participant(index, message.attempt);
  if (!participant || !running() || !survivors_.ready(*participant)) return;
  inform(index, rendezvous::AttemptProgress{});
  report_ready(now);
  if (state_ == State::kRunning) arm_running();
}

/// Reports that the training's state is lost, because the failure message announced survivors.
void Supervisor::report_source() {
  if (attempt_ == 0 || !survivors_.can_survive() || source_) return;
  notify("attempt " + std::to_string(attempt_) +
         ": no surviving rank holds the training's state; training starts from the last checkpoint, or from "
         "step 0");
}

void Supervisor::report_ready(Time now) {
  if (!source_) return;
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now - revoked_at_);
  notify("attempt " + std::to_string(attempt_) + ": " +
         counted(world_.world_size, "rank continues", "ranks continue") + " from step " +
         std::to_string(source_->step) + " (state of rank " + std::to_string(source_->rank) +
         "), recovered in " + std::to_string(took.count()) + " ms");
}

void Supervisor::handle(std::size_t index, const rendezvous::WorkerInTrouble& message, Time now) {
  if (message.attempt != attempt_ || !running() || !runs(index, message.rank)) return;
  if (!survivors_.heeds(message.rank)) return;
  const std::string words =
      "rank " + std::to_string(message.rank) + " on " + nodes_[index].name + ": " + message.text;
  detail(words);
  if (!message.peers.empty()) failures_.lost_peers(static_cast<int>(message.rank));
  // Without a restart budget the ranks end by themselves, each with its own error.
  if (!membership_.restart_left()) return;
  survivors_.in_trouble(words, now);
  if (state_ == State::kRunning) arm_running();
}

/// Ends an attempt whose ranks live but cannot reach each other, or do not all become ready.
void Supervisor::check_survivors(Time now) {
  auto why = survivors_.verdict(now);
  if (!why) return;
  std::string missed;
  for (const std::size_t participant : survivors_.unready())
    missed += (missed.empty() ? "; not ready: ranks of " : ", ") + participant_node(participant).name;
  *why += missed;
  failures_.job_hung(Error{ErrorCode::kHung, *why, 0}, now);
  stop_reason_ = std::move(*why);
  inform(rendezvous::AttemptFailed{stop_reason_});
  deadline_.reset();
}

std::optional<Survivors::StateSource> Supervisor::source_of_state() const {
  std::vector<std::vector<rendezvous::Survivor>> waiting;
  for (const rendezvous::RankAssignment& assignment : world_.assignments)
    waiting.push_back(nodes_[assignment.host].survivors);
  return Survivors::source(world_, waiting);
}

/// Sets the next deadline of a running attempt.
void Supervisor::arm_running() {
  deadline_ = hang_.deadline();
  for (const auto& due : {survivors_.deadline(), early_exit_notice_})
    if (due) deadline_ = deadline_ ? std::min(*deadline_, *due) : *due;
}

}  // namespace ddp::launcher
