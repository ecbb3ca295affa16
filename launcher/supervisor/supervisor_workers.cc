// The part of the Supervisor about running workers: their starts and ends, hangs (docs/users/hang.md), and
// workers that survive a failed attempt (docs/developers/worker_protocol.md).
#include <algorithm>
#include <utility>

#include "base/exit_status.h"
#include "base/text.h"
#include "launcher/supervisor/attempt_start.h"
#include "launcher/supervisor/supervisor.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {

using Journal = JournalEvent::Kind;

// ---- starts and ends

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerStarted& message, Time) {
  if (message.attempt != nodes_.attempt() || !nodes_.runs(from.node, message.rank)) return;
  failures_.worker_started(static_cast<int>(message.rank), from.happened, message.start_attempt);
  nodes_.worker_started(from.node, message.rank, message.pid);
  if (ranks_.start(message.rank, nodes_.world().world_size)) record({.kind = Journal::kAttemptRunning});
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerEvidence& message, Time) {
  if (message.attempt == nodes_.attempt() && nodes_.runs(from.node, message.rank))
    failures_.evidence(message);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerCollectives& message, Time) {
  if (message.attempt == nodes_.attempt() && nodes_.runs(from.node, message.rank))
    failures_.collectives(message, nodes_.world().world_size);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerExited& message, Time now) {
  NodeRecords::Node& node = nodes_[from.node];
  const bool ended_well = message.code == 0 && message.signal == 0;
  const std::string rank_text = "rank " + std::to_string(message.rank);
  const std::string where = rank_text + " on " + node.name + ' ';
  const ExitStatus end_status = message.signal != 0 ? ExitStatus::signaled(message.signal, message.core)
                                                    : ExitStatus::exited(message.code);
  JournalEvent ended{.kind = Journal::kRankExited,
                     .reason = message.pid == 0 ? message.text : end_status.text(),
                     .rank = message.rank,
                     .attempt = message.attempt,
                     .signal = message.signal};
  if (message.signal == 0 && message.pid != 0) ended.exit_code = message.code;
  if (node.state == NodeState::kWaiting) {
    // The loss costs no restart: a new worker replaces the survivor in the attempt that is about to begin.
    if (message.attempt != node.spawned || ended_well) return;
    record(std::move(ended), from.node);
    return out_.say(where + end_status.text() + " while it waited for the next attempt");
  }
  // An agent that has to leave kills its workers. These ends are no failures of the workers.
  const auto participant = nodes_.running_participant(from.node, message.attempt);
  if (!participant) return;
  if (!nodes_.runs(from.node, message.rank)) {
    return lose(from.node, Error{ErrorCode::kProtocol, "it reported a rank that it does not run", 0},
                Parting::kDisconnect, now);
  }
  // A repeated message: the first one counts.
  if (!ranks_.add(message.rank)) return;
  record(std::move(ended), from.node);
  hang_.rank_ended(*participant, now);
  const int rank = static_cast<int>(message.rank);
  // An end without an exact time would blame by the order of arrival. The interval carries how well the
  // node's clock is known (I5).
  const Interval happened{from.happened - from.error, from.happened + from.error};
  const FailureLog::WorkerIdentity worker{node.name, rank, rank - nodes_.assignment(from.node)->first_rank};
  if (ended_well) {
    // A rank that ends well during an inspection is progress. The others may have waited for just that.
    if (state_ == State::kRunning) job_continues(rank_text + " exited 0", now);
    failures_.worker_ended_well(worker, happened);
    return ranks_.left_early(end().early, now);
  }
  if (message.by_revoke) {  // no failure of the worker
    if (!message.text.empty()) out_.say(where + message.text);
    return;
  }
  failures_.worker_failed(worker, message, happened);
  // Noted above even while the attempt is being stopped, because it may be the cause that was reported late.
  if (state_ != State::kRunning) {
    // Other ranks may have ended before, because this one failed.
    if (attempt_end_.cause == StopCause::kFailure && !message.after_stop)
      attempt_end_.non_retryable |= message.non_retryable;
    return;
  }
  // A program that cannot be executed in attempt 0 fails again when retried. In later attempts it ran
  // elsewhere before.
  const bool non_retryable = message.non_retryable || (message.pid == 0 && nodes_.attempt() == 0);
  if (hang_.inspecting() && hang_.purpose() == HangInvestigation::Purpose::kFailed) {
    attempt_end_.non_retryable |= non_retryable;
    return check_attempt(now);
  }
  attempt_end_ = {StopCause::kFailure, Outcome::kFailed, rank_text + " failed", non_retryable};
  if (!message.gave_up || hang_.inspecting()) return stop(attempt_end_, now);
  // The others know why, and forget it when they are stopped. If they all end meanwhile, the attempt is over.
  begin_inspection(HangInvestigation::Purpose::kFailed, now);
  check_attempt(now);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::AttemptEnded& message, Time now) {
  NodeRecords::Node& node = nodes_[from.node];
  if (message.attempt != node.spawned || !node.has_workers()) return;
  if (message.left > 0) {
    out_.say("warning: " + counted(message.left, "process is", "processes are") + " left on " + node.name +
             ": " + message.left_text);
  }
  if (node.state == NodeState::kWaiting) return survivors_gone(from.node, message.left, now);
  const bool was_dismissed = std::exchange(node.ending, false);
  nodes_.enter(from.node, NodeState::kEnded);
  report_leftovers(from.node, message.left, now);
  if (node.lost) {
    if (message.left == 0) prove_empty(from.node, node.incarnation, now);
  } else if (was_dismissed) {
    try_begin(now);
  } else {
    if (state_ == State::kRunning && node.participant) survivors_.ended(*node.participant);
    end_part(from.node, now);
  }
}

// ---- survivors

/// The message comes again when a survivor on the node has died.
void Supervisor::handle(const job::FromNode& from, const rendezvous::AttemptRevoked& message, Time now) {
  NodeRecords::Node& node = nodes_[from.node];
  const bool again = node.state == NodeState::kWaiting;
  if (message.attempt != node.spawned || node.ending || node.lost) return;
  const bool asked = node.state == NodeState::kSpawned && state_ == State::kStopping && attempt_end_.revoked;
  if (!again && !asked) return;
  nodes_.enter(from.node, NodeState::kWaiting);
  survivors_.wait(from.node, message.survivors, static_cast<std::uint32_t>(node.ran.local_world_size));
  if (!again) end_part(from.node, now);
}

/// The last survivor on the node has died: no process is left to end, and no state to continue from.
void Supervisor::survivors_gone(std::size_t index, std::uint32_t left, Time now) {
  const NodeRecords::Node& node = nodes_[index];
  // The next attempt may have begun with the node.
  const bool begun = state_ == State::kStarting && node.participant && !node.lost;
  survivors_.forget(index);
  nodes_.enter(index, begun ? NodeState::kAccepted : NodeState::kEnded);
  if (begun && left > 0) {
    return fail_start(
        index, {ErrorCode::kLinkLost, "processes of the previous attempt could not be killed", 0}, now);
  }
  if (begun) return;
  report_leftovers(index, left, now);
  if (node.lost && left == 0) prove_empty(index, node.incarnation, now);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkersGreeted& message, Time) {
  const auto participant = nodes_.running_participant(from.node, message.attempt);
  if (!participant || state_ != State::kRunning) return;
  if (survivors_.greeted(*participant))
    out_.detail("all workers can survive the failure of a peer; attempts are revoked from now on");
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkersReady& message, Time now) {
  const auto participant = nodes_.running_participant(from.node, message.attempt);
  if (!participant || state_ != State::kRunning || !survivors_.ready(*participant, now)) return;
  made_progress_ = true;
  std::string text = survivors_.ready_text(message.attempt, nodes_.world().world_size, now);
  if (!text.empty()) out_.notify(std::move(text));
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::WorkerInTrouble& message, Time now) {
  if (message.attempt != nodes_.attempt() || state_ != State::kRunning ||
      !nodes_.runs(from.node, message.rank) || !survivors_.accepts_report(message.rank))
    return;
  std::string text =
      "rank " + std::to_string(message.rank) + " on " + nodes_[from.node].name + ": " + message.text;
  out_.detail(text);
  if (!message.peers.empty()) failures_.lost_peers(static_cast<int>(message.rank));
  // Without a restart budget the ranks end by themselves, each with its own error.
  if (restart_left()) survivors_.in_trouble(std::move(text), now);
}

// ---- lines that mean trouble

void Supervisor::on(const job::WatchedLine& seen, Time now) {
  if (seen.attempt != nodes_.attempt() || !nodes_.runs(seen.node, seen.rank)) return;
  const WatchRule& rule = spec_.watch.at(seen.rule);
  const std::string& host = nodes_[seen.node].name;
  std::string what = "printed " + quote(seen.line) + " (" + rule.text() + ')';
  rendezvous::clean_line(what);
  const std::string text = "rank " + std::to_string(seen.rank) + " on " + host + ' ' + what;
  // Output may come behind the messages that ended the attempt. It explains them, and has no further effect.
  const bool acts = state_ == State::kRunning;
  const bool fails = acts && rule.action == WatchRule::Action::kFail;
  record({.kind = Journal::kLineMatched,
          .reason = what,
          .rank = seen.rank,
          .attempt = seen.attempt,
          .failure = fails},
         seen.node);
  out_.say("warning: " + text);
  if (acts && rule.action == WatchRule::Action::kHang && !hang_.ends_attempt()) {
    (void)hang_.abandon();  // whoever asked gets the new answer
    record({.kind = Journal::kHangFound, .reason = text, .rank = seen.rank});
    begin_inspection(HangInvestigation::Purpose::kHang, now, text);
  }
  if (!fails) return;
  const int rank = static_cast<int>(seen.rank);
  failures_.worker_misbehaved({host, rank, rank - nodes_.assignment(seen.node)->first_rank}, what,
                              {seen.happened - seen.error, seen.happened + seen.error});
  stop({.cause = StopCause::kFailure,
        .outcome = Outcome::kFailed,
        .reason = "rank " + std::to_string(rank) + " failed",
        .failed_rank = seen.rank},
       now);
}

// ---- hangs

/// Looks for what ends a running attempt whose workers live: ranks that cannot reach each other or do not all
/// become ready, and a hang.
void Supervisor::check_attempt(Time now) {
  if (hang_.inspecting()) {
    if (hang_.complete(now)) return end_inspection(now);
    if (hang_.names_now(now)) name_hang();
    return;
  }
  if (const std::string notice = ranks_.take_notice(end().early, nodes_.world().world_size, now);
      !notice.empty())
    out_.notify(notice);
  if (const std::set<std::size_t> late = survivors_.late(now); !late.empty()) {
    const Error error{ErrorCode::kTimeout,
                      "its workers did not take part in attempt " + std::to_string(nodes_.attempt()) +
                          " within " + survivors_.limit_text(),
                      0};
    for (const std::size_t participant : late)
      lose(nodes_.node_of(participant), error, Parting::kLeave, now);
    return;
  }
  if (auto why = survivors_.verdict(now)) {
    std::string missed;
    for (const std::size_t participant : survivors_.unready())
      missed += (missed.empty() ? "; not ready: ranks of " : ", ") + nodes_.participant(participant).name;
    failures_.job_hung(Error{ErrorCode::kHung, *why + missed, 0}, {now, now});
    return stop({StopCause::kFailure, Outcome::kFailed, *why + missed}, now);
  }
  using Purpose = HangInvestigation::Purpose;
  const HangDetector::Finding found = hang_.check(now);
  if (found == HangDetector::Finding::kNone) return;
  if (!std::exchange(hang_found_, true))
    record({.kind = Journal::kHangFound, .reason = "no worker prints or uses the CPU"});
  begin_inspection(found == HangDetector::Finding::kHang ? Purpose::kHang : Purpose::kStall, now);
}

/// `cause`: as in HangInvestigation::begin.
void Supervisor::begin_inspection(HangInvestigation::Purpose purpose, Time now, std::string cause) {
  if (purpose == HangInvestigation::Purpose::kHang)
    out_.say("the job seems to hang; inspecting the workers (at most " +
             format_duration(HangInvestigation::inspect_time(purpose) + HangInvestigation::kInspectSlack) +
             ")");
  failures_.begin_inspection();
  for (const std::size_t participant : hang_.begin(purpose, ranks_.ranks(), now, std::move(cause)))
    out_.send(nodes_.node_of(participant), hang_.order(nodes_.attempt()));
}

std::string Supervisor::hang_files() const {
  return spec_.job_dir + "/attempt_" + std::to_string(nodes_.attempt()) + "/hang_rank_*.txt";
}

/// Stacks take seconds, and rarely tell more.
void Supervisor::name_hang() {
  failures_.name_hang(hang_.name_now(hang_files()));
  const HangVerdict& verdict = *end().hang;
  answer_user();
  record({.kind = Journal::kHangNamed, .reason = verdict.text, .hang = verdict});
  const bool active = verdict.kind == HangVerdict::Kind::kActive;  // a line made it count as hung (--watch)
  out_.say((active ? "the job counts as hung: " : "the job makes no progress: ") + verdict.text +
           "; collecting stacks");
}

/// Makes the verdict, and does what the inspection was for.
void Supervisor::end_inspection(Time now) {
  using Purpose = HangInvestigation::Purpose;
  const Purpose purpose = hang_.purpose();
  const std::string files = hang_files();
  const bool named = !hang_.names_now(now) && purpose == Purpose::kHang;
  failures_.name_hang(hang_.conclude(files, now));
  const HangVerdict& verdict = *end().hang;
  answer_user();
  if (purpose == Purpose::kStall || (purpose == Purpose::kHang && !named))
    record({.kind = Journal::kHangNamed, .reason = verdict.text, .hang = verdict});
  switch (purpose) {
    case Purpose::kAsked: return;
    case Purpose::kStall:
      out_.say("the job has made no progress for " + format_elapsed(verdict.quiet) + ": " + verdict.text);
      for (const std::string& line : hang_.lines())
        out_.say("  " + line);
      return out_.say("  it goes on; `ddplaunch stop " + spec_.job_id + "` ends it, `ddplaunch stacks " +
                      spec_.job_id + "` shows more, and --hang-timeout ends such a job by itself");
    case Purpose::kFailed:
      if (verdict.ranks.empty()) failures_.hang_over();  // the failure itself says more
      return stop(attempt_end_, now);
    case Purpose::kHang: break;
  }
  failures_.job_hung(Error{ErrorCode::kHung, hang_.hung_text(files), 0},
                     {hang_.last_activity(), hang_.found_at()});
  if (restart_left()) {  // the report has these lines only for the attempt that ends the job
    for (const std::string& line : hang_.lines())
      out_.say(line);
    const std::string early = early_exits_text(end(), end().failures.back());
    if (!early.empty()) out_.say(early);
  }
  stop({StopCause::kFailure, Outcome::kFailed, "the job hung"}, now);
}

/// What was found of a hang holds no more.
void Supervisor::job_continues(const std::string& reason, Time now) {
  const bool cancelled = hang_.cancel();
  failures_.hang_over();
  if (std::exchange(hang_found_, false)) {
    record({.kind = Journal::kHangOver, .reason = reason});
    out_.say("the job continues: " + reason);
  }
  if (cancelled && hang_asked_) begin_inspection(HangInvestigation::Purpose::kAsked, now);
}

void Supervisor::on(const job::AskHang&, Time now) {
  hang_asked_ = true;
  if (state_ != State::kRunning) {
    // An answer to an earlier question is old. What has ended the attempt is not.
    if (end().hang && end().hang->kind == HangVerdict::Kind::kActive) failures_.hang_over();
    return answer_user();
  }
  // An inspection that runs answers this question, too.
  if (!hang_.inspecting()) begin_inspection(HangInvestigation::Purpose::kAsked, now);
}

void Supervisor::answer_user() {
  if (std::exchange(hang_asked_, false)) out_.add(job::HangAnswered{});
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::Quiet& message, Time now) {
  const auto participant = nodes_.running_participant(from.node, message.attempt);
  if (!participant) return;
  // Use the later bound of the clock error, to avoid a false positive.
  if (message.quiet)
    return hang_.quiet(*participant, std::min(now, from.happened + from.error), message.by_steps);
  hang_.alive(*participant);
  if (state_ == State::kRunning) job_continues(nodes_[from.node].name + " makes progress again", now);
}

void Supervisor::handle(const job::FromNode& from, const rendezvous::Inspection& message, Time now) {
  const auto participant = nodes_[from.node].participant;
  if (message.attempt != nodes_.attempt() || state_ != State::kRunning || !hang_.inspecting() || !participant)
    return;
  if (!message.last && !message.only_stacks_follow) {
    if (!nodes_.runs(from.node, message.rank)) return;
    if (!message.text.empty()) out_.add(job::Dump{nodes_.attempt(), message.rank, message.text});
  }
  hang_.answer(*participant, message);
  check_attempt(now);
}

}  // namespace ddp::launcher
