// The part of the Supervisor that deals with hangs (docs/users/hang.md).
#include <algorithm>
#include <utility>

#include "launcher/supervisor/start_messages.h"
#include "launcher/supervisor/supervisor.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Time for the nodes to inspect their workers; py-spy and gdb take seconds each.
constexpr seconds kInspectTime{14};
/// Additional time for the answers to arrive.
constexpr seconds kInspectSlack{1};

}  // namespace

void Supervisor::monitor_hangs(Time now) {
  std::vector<HangInvestigation::NodeShare> shares;
  for (const rendezvous::RankAssignment& assignment : world_.assignments) {
    shares.push_back({nodes_[assignment.host].name, static_cast<std::uint32_t>(assignment.first_rank),
                      static_cast<std::uint32_t>(assignment.local_world_size)});
  }
  hang_ = HangInvestigation(spec_.hang_timeout, std::move(shares), now);
  arm_running();
}

void Supervisor::handle(std::size_t index, const rendezvous::Quiet& message, Time now) {
  const auto participant = running_participant(index, message.attempt);
  if (!participant) return;
  // Use the later bound of the clock error, to avoid a false positive.
  if (message.quiet)
    hang_.quiet(*participant, std::min(now, current_->happened + current_->error));
  else
    hang_.alive(*participant);
  if (state_ == State::kInspecting && !message.quiet) {
    say("the job continues: " + nodes_[index].name + " makes progress again");
    state_ = State::kRunning;
  }
  if (state_ == State::kRunning) arm_running();
}

void Supervisor::handle(std::size_t index, const rendezvous::Inspection& message, Time now) {
  if (message.attempt != attempt_ || state_ != State::kInspecting || !nodes_[index].participant) return;
  if (!message.last) {
    if (!runs(index, message.rank)) return;
    if (!message.text.empty()) actions_.push_back(job::Dump{attempt_, message.rank, message.text});
  }
  hang_.answer(*nodes_[index].participant, message);
  if (hang_.complete()) conclude_hang(now);
}

void Supervisor::check_for_hang(Time now) {
  if (!hang_.hangs(now)) return arm_running();
  say("the job seems to hang; inspecting the workers (at most " +
      std::to_string((kInspectTime + kInspectSlack).count()) + " s)");
  state_ = State::kInspecting;
  deadline_ = now + kInspectTime + kInspectSlack;
  for (const std::size_t participant : hang_.begin(now))
    send(node_of(participant), rendezvous::Inspect{attempt_, to_ms(kInspectTime)});
}

void Supervisor::conclude_hang(Time now) {
  std::string text = hang_.text();
  text += "\nstacks and state of each rank: " + spec_.job_dir + "/attempt_" + std::to_string(attempt_) +
          "/hang_rank_*.txt";
  if (const std::string hint = hang_.hint(); !hint.empty()) text += "\nhint: " + hint;
  failures_.job_hung(Error{ErrorCode::kHung, std::move(text), 0}, now);
  // The report has these lines only for the attempt that ends the job.
  if (membership_.restart_left()) {
    for (const std::string& line : hang_.lines())
      say(line);
    if (const std::string early = early_exits_text(end(), end().failures.back()); !early.empty()) say(early);
  }
  stop_reason_ = "the job hung";
  // When several ranks are behind, some may only wait for another of them: for the rank through which their
  // node hears of the others. Ranks that answer the revoke survive; the others are killed at its deadline.
  hung_ = hang_.behind();
  if (hung_.size() > 1) hung_.clear();
  inform(rendezvous::AttemptFailed{stop_reason_});
}

}  // namespace ddp::launcher
