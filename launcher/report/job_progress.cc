#include "launcher/report/job_progress.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/result.h"
#include "launcher/report/root_cause.h"

namespace ddp::launcher {
namespace {

using Kind = JournalEvent::Kind;

/// Durations of steps are measured over this time at least, and twice of it at most.
constexpr std::chrono::seconds kMeasured{10};
/// A job is stalled if its present step takes longer than both: a time, and a multiple of the median.
constexpr std::chrono::seconds kStalled{30};
constexpr double kStalledMedians = 5;
constexpr std::size_t kRecentReports = 31;
constexpr std::uint64_t kMostStepsAtOnce = 1'000'000'000;
constexpr std::size_t kMostXidLines = 10'000;
constexpr std::size_t kNoCause = JobProgress::kCauseNames.size() - 1;

std::size_t at(JobProgress::Phase phase) {
  return static_cast<std::size_t>(phase);
}

/// Returns the cause of a failure that the event may be; kNoCause: it is none.
std::size_t cause_of(const JournalEvent& event) {
  if (event.kind == Kind::kRankExited) return event.exit_code == 0 ? kNoCause : 0;
  if (event.kind == Kind::kNodeLost) return 1;
  return event.kind == Kind::kHangFound ? 2 : kNoCause;
}

}  // namespace

double JobProgress::Figures::goodput() const {
  const double all = std::accumulate(spent.begin(), spent.end(), Time{0}).count();
  return all > 0 ? static_cast<double>(spent[at(Phase::kTrain)].count()) / all : 0;
}

/// Returns the time without a step of all ranks, within this phase; 0 while that is not too long. How long
/// the first step of a job may take is not known.
JobProgress::Time JobProgress::stalled(Time now) const {
  const std::optional<Mark>& latest = marks_[0];
  if (!latest || recent_.empty() || (phase_ != Phase::kTrain && phase_ != Phase::kRework)) return Time{0};
  std::deque<double> sorted = recent_;
  const auto median = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), median, sorted.end());
  const Time quiet = now - std::max(latest->time, since_);
  const double seconds = std::chrono::duration<double>(quiet).count();
  return quiet >= kStalled && seconds >= kStalledMedians * *median ? quiet : Time{0};
}

/// Adds the time of the present phase. Goodput ends where steps end, also if nobody looks for hangs.
void JobProgress::book(std::array<Time, kPhaseNames.size()>& spent, Time now) const {
  const Time lost = stalled(now);
  spent[at(Phase::kHang)] += lost;
  spent[at(phase_)] += std::max(Time{0}, now - since_) - lost;
}

void JobProgress::enter(Phase phase, Time now) {
  book(sums_.spent, now);
  since_ = now;
  phase_ = phase;
}

void JobProgress::take(const JournalEvent& event, Time now) {
  if (cause_ == kNoCause) cause_ = cause_of(event);
  switch (event.kind) {
    case Kind::kNodeLost:
      ++sums_.nodes_lost;
      break;
    case Kind::kAttemptStarted:
      attempt_ = event.attempt.value_or(0);
      if (!ranks_at_.empty()) reached_ = std::max(reached_.value_or(0), ranks_at_.begin()->first);
      xid_lines_.clear();
      reports_.clear();
      ranks_at_.clear();
      marks_ = {};
      cause_ = kNoCause;
      enter(Phase::kStart, now);
      break;
    case Kind::kAttemptRunning:
      enter(Phase::kTrain, now);  // whether it repeats steps, its first report shows
      break;
    case Kind::kHangFound: {
      const Phase before = phase_;
      const Time booked = stalled(now);
      enter(Phase::kHang, now);
      const Time quiet = std::clamp(hang_timeout_ - booked, Time{0}, sums_.spent[at(before)]);
      sums_.spent[at(before)] -= quiet;
      sums_.spent[at(Phase::kHang)] += quiet;
      break;
    }
    case Kind::kHangOver:
      enter(Phase::kTrain, now);
      break;
    case Kind::kAttemptStopping:
    case Kind::kAttemptEnded: {
      const bool failed = event.kind == Kind::kAttemptStopping ? event.failure : cause_ != kNoCause;
      if (failed && phase_ != Phase::kWait) ++sums_.failures[cause_];
      enter(Phase::kWait, now);
      break;
    }
    default:
      break;
  }
}

void JobProgress::count_steps(std::uint64_t steps, Time together) {
  if (steps > kMostStepsAtOnce) return;  // the numbers of the ranks cannot be right
  const double seconds = std::chrono::duration<double>(together).count();
  const auto bound = std::ranges::lower_bound(kStepBounds, seconds / static_cast<double>(steps));
  sums_.step_durations[static_cast<std::size_t>(bound - kStepBounds.begin())] += steps;
  sums_.step_duration_sum += seconds;
  recent_.push_back(seconds / static_cast<double>(steps));
  if (recent_.size() > kRecentReports) recent_.pop_front();
}

void JobProgress::measure(std::uint64_t lowest, Time now) {
  auto& [latest, older, oldest] = marks_;
  if (latest && latest->step == lowest) return;
  if (latest && lowest < latest->step) marks_ = {};  // a slower rank has reported for the first time
  if (latest) count_steps(lowest - latest->step, now - latest->time);
  latest = Mark{lowest, now};
  if (!older || now - older->time >= kMeasured) {
    oldest = older;
    older = latest;
  }
}

void JobProgress::take_steps(const rendezvous::WorkerSteps& message, Time now) {
  if (message.attempt != attempt_) return;
  const std::size_t count = message.ranks.size();
  DDP_REQUIRE(
      count == message.steps.size() && count == message.losses.size() && count == message.phases.size(),
      count, message.steps.size(), message.losses.size(), message.phases.size());
  for (std::size_t i = 0; i < message.ranks.size(); ++i) {
    const std::uint64_t step = message.steps[i];
    const auto [rank, first] = reports_.try_emplace(message.ranks[i], RankReport{step, {}, {}});
    if (!first) {
      const auto before = ranks_at_.find(std::exchange(rank->second.step, step));
      DDP_REQUIRE(before != ranks_at_.end() && before->second > 0, rank->first);
      if (--before->second == 0) ranks_at_.erase(before);
    }
    ++ranks_at_[step];
    const double loss = std::bit_cast<double>(message.losses[i]);
    rank->second.loss = std::isfinite(loss) ? std::optional(loss) : std::nullopt;
    rank->second.phase = message.phases[i];
  }
  if (ranks_at_.empty()) return;
  const std::uint64_t lowest = ranks_at_.begin()->first;
  if (marks_[0] && lowest > marks_[0]->step && stalled(now) > Time{0}) enter(phase_, now);
  measure(lowest, now);
  const bool repeats = lowest < reached_.value_or(0);
  if (phase_ == Phase::kTrain && repeats) phase_ = Phase::kRework;  // since all ranks run
  if (phase_ == Phase::kRework && !repeats) enter(Phase::kTrain, now);
}

void JobProgress::take_xids(const std::string& node, std::string_view lines) {
  std::istringstream text{std::string(lines)};
  for (std::string line; xid_lines_.size() < kMostXidLines && std::getline(text, line);) {
    const int number = xid_number(line);
    if (number != 0 && xid_lines_.insert(node + ' ' + line).second) ++sums_.xids[node][number];
  }
}

std::optional<JobProgress::RankReport> JobProgress::report_of(std::uint32_t rank) const {
  const auto found = reports_.find(rank);
  return found == reports_.end() ? std::nullopt : std::optional(found->second);
}

JobProgress::Figures JobProgress::figures(Time now) const {
  Figures figures = sums_;
  book(figures.spent, now);
  figures.stalled = stalled(now);
  if (!ranks_at_.empty()) {
    figures.step = ranks_at_.begin()->first;
    figures.last_step = ranks_at_.rbegin()->first;
    const auto with_loss =
        std::ranges::find_if(reports_, [](const auto& entry) { return entry.second.loss.has_value(); });
    if (with_loss != reports_.end()) figures.loss = with_loss->second.loss;
  }
  const auto& [latest, older, oldest] = marks_;
  if (latest) figures.step_age = now - latest->time;
  const auto& from = oldest ? oldest : older;
  if (latest && from && latest->step > from->step) {
    figures.step_seconds = std::chrono::duration<double>(latest->time - from->time).count() /
                           static_cast<double>(latest->step - from->step);
    const Time waited = now - latest->time;  // for the end of the present step
    if (waited > kMeasured)
      figures.step_seconds = std::max(*figures.step_seconds, std::chrono::duration<double>(waited).count());
  }
  return figures;
}

}  // namespace ddp::launcher
