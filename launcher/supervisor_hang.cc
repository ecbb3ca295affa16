// The part of the Supervisor that deals with hangs (docs/hang.md).
#include <algorithm>
#include <utility>

#include "launcher/start_messages.h"
#include "launcher/supervisor.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// For the nodes to look into their workers: py-spy and gdb take seconds each.
constexpr seconds kInspectTime{14};
/// Beyond that: their answers are on the way.
constexpr seconds kInspectSlack{1};

}  // namespace

void Supervisor::watch_for_hangs(Time now) {
  std::vector<HangInquiry::NodePart> parts;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const rendezvous::NodeRanks& ranks = plan_.nodes[i];
    parts.push_back({spec_.hosts[i].name, static_cast<std::uint32_t>(ranks.first_rank),
                     static_cast<std::uint32_t>(ranks.local_world_size)});
  }
  hang_ = HangInquiry(spec_.hang_timeout, std::move(parts), now);
}

void Supervisor::handle(std::size_t index, const rendezvous::Quiet& message, Time now) {
  if (message.attempt != attempt_ || nodes_[index].state != NodeState::kSpawned) return;
  // Rather too late than too early: of the clocks' error the better end for the job.
  if (message.quiet)
    hang_.quiet(index, std::min(now, current_->happened + current_->error));
  else
    hang_.alive(index);
  if (state_ == State::kInspecting && !message.quiet) {
    actions_.push_back(Say{"the job goes on: " + spec_.hosts[index].name + " is at work again"});
    state_ = State::kRunning;
  }
  if (state_ == State::kRunning) deadline_ = hang_.deadline();
}

void Supervisor::handle(std::size_t index, const rendezvous::Inspection& message, Time now) {
  if (message.attempt != attempt_ || state_ != State::kInspecting) return;
  if (!message.last) {
    if (!runs(index, message.rank)) return;
    if (!message.text.empty()) actions_.push_back(Dump{attempt_, message.rank, message.text});
  }
  hang_.answer(index, message);
  if (hang_.complete()) conclude_hang(now);
}

void Supervisor::check_for_hang(Time now) {
  if (!hang_.hangs(now)) {
    deadline_ = hang_.deadline();
    return;
  }
  actions_.push_back(Say{"the job seems to hang; asking the nodes what their workers do (at most " +
                         std::to_string((kInspectTime + kInspectSlack).count()) + " s)"});
  state_ = State::kInspecting;
  deadline_ = now + kInspectTime + kInspectSlack;
  for (const std::size_t node : hang_.begin(now))
    send(node, rendezvous::Inspect{attempt_, to_ms(kInspectTime)});
}

void Supervisor::conclude_hang(Time now) {
  // The report tells them, but only of the attempt that ended the job.
  if (static_cast<int>(attempt_) < spec_.max_restarts) {
    for (const std::string& line : hang_.lines())
      actions_.push_back(Say{line});
  }
  std::string text = hang_.text();
  text += "\nstacks and more of each rank: " + spec_.job_dir + "/attempt_" + std::to_string(attempt_) +
          "/hang_rank_*.txt";
  if (const std::string hint = hang_.hint(); !hint.empty()) text += "\nhint: " + hint;
  failures_.job_hung(Error{ErrorCode::kHung, std::move(text), 0}, now);
  stop_all(spec_.failure_grace, "the job hung", now);
}

}  // namespace ddp::launcher
