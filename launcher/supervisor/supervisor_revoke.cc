// The part of the Supervisor that lets workers survive a failed attempt (docs/developers/worker_protocol.md).
#include <utility>

#include "launcher/supervisor/start_messages.h"
#include "launcher/supervisor/supervisor.h"

namespace ddp::launcher {

/// Ends survivors that have no attempt to take part in.
void Supervisor::end_survivors(std::size_t index, std::chrono::milliseconds grace,
                               const std::string& reason) {
  NodeTable::Node& node = nodes_[index];
  out_.send(index, rendezvous::Stop{node.spawned, to_ms(grace), reason});
  node.state = NodeState::kSpawned;
  node.ending = true;
  survivors_.forget(index);
}

/// The message comes again when a survivor on the node has died.
void Supervisor::handle(const job::FromNode& from, const rendezvous::AttemptRevoked& message, Time) {
  NodeTable::Node& node = nodes_[from.node];
  const bool again = node.state == NodeState::kWaiting;
  if (message.attempt != node.spawned || node.ending || node.lost) return;
  const bool asked = node.state == NodeState::kSpawned && state_ == State::kStopping && revoking_;
  if (!again && !asked) return;
  node.state = NodeState::kWaiting;
  survivors_.wait(from.node, message.survivors, static_cast<std::uint32_t>(node.ran.local_world_size));
  if (!again) inform(rendezvous::NodeWaits{}, from.node);
}

/// The last survivor on the node has died: no process is left to end, and no state to continue from.
void Supervisor::survivors_gone(std::size_t index, std::uint32_t left, Time now) {
  NodeTable::Node& node = nodes_[index];
  // The Membership may have begun the next attempt with the node.
  const bool begun = state_ == State::kStarting && node.participant && !node.lost;
  survivors_.forget(index);
  node.state = begun ? NodeState::kAccepted : NodeState::kEnded;
  if (begun && left > 0) {
    return fail_start(
        index, {ErrorCode::kLinkLost, "processes of the previous attempt could not be killed", 0}, now);
  }
  if (!begun && !node.lost) inform(rendezvous::NodeEnded{left}, index);
  if (node.lost && left == 0) inform(rendezvous::WorkersGone{}, index);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkersGreeted& message, Time) {
  const auto participant = nodes_.running_participant(from.node, message.attempt);
  if (!participant || state_ != State::kRunning) return;
  if (survivors_.greeted(*participant))
    out_.detail("all workers can survive the failure of a peer; attempts are revoked from now on");
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkersReady& message, Time now) {
  const auto participant = nodes_.running_participant(from.node, message.attempt);
  if (!participant || state_ != State::kRunning || !survivors_.ready(*participant)) return;
  inform(rendezvous::AttemptProgress{}, from.node);
  std::string text = survivors_.ready_text(message.attempt, nodes_.world().world_size, now);
  if (!text.empty()) out_.notify(std::move(text));
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerInTrouble& message, Time now) {
  if (message.attempt != nodes_.attempt() || state_ != State::kRunning ||
      !nodes_.runs(from.node, message.rank) || !survivors_.heeds(message.rank))
    return;
  std::string text =
      "rank " + std::to_string(message.rank) + " on " + nodes_[from.node].name + ": " + message.text;
  out_.detail(text);
  if (!message.peers.empty()) failures_.lost_peers(static_cast<int>(message.rank));
  // Without a restart budget the ranks end by themselves, each with its own error.
  if (membership_.restart_left()) survivors_.in_trouble(std::move(text), now);
}

}  // namespace ddp::launcher
