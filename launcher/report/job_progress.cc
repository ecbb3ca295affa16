#include "launcher/report/job_progress.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/result.h"
#include "base/text.h"
#include "launcher/report/root_cause.h"

namespace ddp::launcher {
namespace {

std::string seconds_text(double seconds) {
  return seconds < 1 ? format_text("%.0f ms", seconds * 1000) : format_text("%.2f s", seconds);
}

}  // namespace

void SlowRanks::add(std::uint32_t number, std::uint64_t steps, double own, double waited) {
  Rank& rank = ranks_[number];
  rank.steps += steps;
  rank.own += own;
  rank.time += own + waited;
  waits_known_ = waits_known_ || waited > 0;
  if (rank.steps < kWindow || rank.time < kWindowTime) return;
  rank.before = std::exchange(rank.latest, rank.own / static_cast<double>(rank.steps));
  ++rank.windows;
  rank.steps = 0;
  rank.own = rank.time = 0;
}

std::vector<SlowRanks::Change> SlowRanks::check(Time now, const HostOf& host_of, const FactsOf& facts_of) {
  std::vector<double> means;
  for (const auto& [number, rank] : ranks_)
    if (rank.windows >= 2) means.push_back(std::min(rank.before, rank.latest));
  if (means.size() < 2) return {};
  // Of two ranks the faster one: what one of them can do, both should.
  const auto middle = means.begin() + static_cast<std::ptrdiff_t>((means.size() - 1) / 2);
  std::ranges::nth_element(means, middle);
  const double median = *middle;
  std::vector<Change> changes;
  std::vector<int> unnamed;
  for (auto& [number, rank] : ranks_) {
    if (rank.windows < 2) continue;
    const auto [faster, slower] = std::minmax(rank.before, rank.latest);
    const bool is_slow = faster > kSlower * median && faster - median >= kLeast;
    const std::string who = "rank " + std::to_string(number) + " on " + host_of(number);
    if (rank.slow && slower < std::max(kRecovered * median, median + kLeast)) {
      rank.slow = false;
      if (std::exchange(rank.named, false))
        changes.push_back({number, false, who + " is as fast as the other ranks again"});
      continue;
    }
    if (!rank.slow && !is_slow) continue;
    const bool is_new = !std::exchange(rank.slow, true);
    if (rank.named_at != Time(0) && now - rank.named_at < kSilence) continue;
    const std::string facts = facts_of(number);
    if (!is_new && rank.named && facts == rank.facts) continue;
    rank.named_at = now;
    rank.facts = facts;
    if (changes.size() >= kMostNamed) {
      unnamed.push_back(static_cast<int>(number));
      continue;
    }
    rank.named = true;
    changes.push_back(
        {number, true,
         who + " is slow: " + seconds_text(faster) + " per step" +
             (waits_known_ ? " without waiting for others" : "") + ", the median of the ranks is " +
             seconds_text(median) +
             (facts.empty() ? "; nothing is known of its node that explains it" : "; on its node " + facts)});
  }
  if (!unnamed.empty())
    changes.push_back(
        {static_cast<std::uint32_t>(unnamed.front()), true,
         counted(unnamed.size(), "more rank is slow: ", "more ranks are slow: ") + format_ranks(unnamed)});
  return changes;
}

namespace {

using Kind = JournalEvent::Kind;

/// Durations of steps are measured over this time at least, and twice of it at most.
constexpr std::chrono::seconds kMeasured{10};
/// A job is stalled if its present step takes longer than both: a time, and a multiple of the median.
constexpr std::chrono::seconds kStalled{30};
constexpr double kStalledMedians = 5;
constexpr std::size_t kRecentReports = 31;
/// The steps of a rank are compared in windows of this time at least.
constexpr std::chrono::seconds kWindow{30};
constexpr std::size_t kMostXidLines = 10'000;
constexpr std::size_t kNoCause = JobProgress::kCauseNames.size() - 1;

std::size_t at(JobProgress::Phase phase) {
  return static_cast<std::size_t>(phase);
}

/// Returns the cause of a failure that the event may be; kNoCause: it is none.
std::size_t cause_of(const JournalEvent& event) {
  if (event.kind == Kind::kRankExited) return event.exit_code == 0 ? kNoCause : 0;
  if (event.kind == Kind::kLineMatched) return event.failure ? 0 : kNoCause;
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
void JobProgress::add_present_phase(std::array<Time, kPhaseNames.size()>& spent, Time now) const {
  const Time lost = stalled(now);
  spent[at(Phase::kHang)] += lost;
  spent[at(phase_)] += std::max(Time{0}, now - since_) - lost;
}

void JobProgress::enter(Phase phase, Time now) {
  add_present_phase(sums_.spent, now);
  since_ = now;
  phase_ = phase;
}

void JobProgress::on_event(const JournalEvent& event, Time now) {
  if (cause_ == kNoCause) cause_ = cause_of(event);
  switch (event.kind) {
    case Kind::kNodeLost: ++sums_.nodes_lost; break;
    case Kind::kAttemptStarted:
      attempt_ = event.attempt.value_or(0);
      // What all ranks had done may have been lost with the attempt: steps up to there count as rework.
      if (!ranks_at_.empty()) reached_ = std::max(reached_.value_or(0), ranks_at_.begin()->first);
      xid_lines_.clear();
      ranks_.clear();
      ranks_at_.clear();
      slow_ranks_.begin_attempt();
      marks_ = {};
      cause_ = kNoCause;
      enter(Phase::kStart, now);
      break;
    case Kind::kAttemptRunning:
      enter(Phase::kTrain, now);  // whether it repeats steps, its first report shows
      break;
    case Kind::kHangFound: {
      const Phase before = phase_;
      // A hang begins --hang-timeout before it is found. What the stall rule has booked already is not moved
      // again, and no more than this phase has had.
      const Time booked = stalled(now);
      enter(Phase::kHang, now);
      const Time waited = event.rank ? Time{0} : hang_timeout_;  // a line of a rank tells of it at once
      const Time quiet = std::clamp(waited - booked, Time{0}, sums_.spent[at(before)]);
      sums_.spent[at(before)] -= quiet;
      sums_.spent[at(Phase::kHang)] += quiet;
      break;
    }
    case Kind::kHangOver: enter(Phase::kTrain, now); break;
    case Kind::kAttemptStopping:
    case Kind::kAttemptEnded: {
      const bool failed = event.kind == Kind::kAttemptStopping ? event.failure : cause_ != kNoCause;
      if (failed && phase_ != Phase::kWait) ++sums_.failures[cause_];
      enter(Phase::kWait, now);
      break;
    }
    default: break;
  }
}

/// Durations that cannot be right are not counted.
void JobProgress::count_steps(const rendezvous::WorkerSteps& message, Time now) {
  StepDurations durations;
  for (std::size_t i = 0; i < message.durations.size(); i += 2)
    if (!durations.add(message.durations[i], message.durations[i + 1])) return;
  const auto too_many = [](std::uint64_t count) { return count > StepDurations::kMost; };
  const auto wrong_sum = [](std::uint64_t bits) {
    const auto seconds = std::bit_cast<double>(bits);
    return !(seconds >= 0 && seconds <= static_cast<double>(StepDurations::kMost));
  };
  if (std::ranges::any_of(message.counts, too_many) || std::ranges::any_of(message.seconds, wrong_sum) ||
      std::ranges::any_of(message.waits, wrong_sum))
    return;
  for (std::size_t i = 0; i < message.ranks.size(); ++i) {
    const auto seconds = std::bit_cast<double>(message.seconds[i]);
    durations.seconds += seconds;
    if (message.counts[i] == 0) continue;
    RankState& rank = ranks_.at(message.ranks[i]);
    if (rank.present.steps > 0 && now - rank.window_began >= kWindow)
      rank.previous = std::exchange(rank.present, {});
    if (rank.present.steps == 0) rank.window_began = now;
    rank.present.steps += message.counts[i];
    rank.present.seconds += seconds;
    const auto waited = std::bit_cast<double>(message.waits[i]);
    slow_ranks_.add(message.ranks[i], message.counts[i], std::max(0.0, seconds - waited), waited);
  }
  sums_.durations.add(durations);
}

void JobProgress::measure(std::uint64_t lowest, Time now) {
  auto& [latest, older, oldest] = marks_;
  if (latest && latest->step == lowest) return;
  if (latest && lowest < latest->step) marks_ = {};  // a slower rank has reported for the first time
  if (latest && lowest - latest->step <= StepDurations::kMost) {  // else the numbers cannot be right
    recent_.push_back(std::chrono::duration<double>(now - latest->time).count() /
                      static_cast<double>(lowest - latest->step));
    if (recent_.size() > kRecentReports) recent_.pop_front();
  }
  latest = Mark{lowest, now};
  // Two marks behind the latest one: the duration is always over 10 to 20 s, also just after a mark has
  // moved.
  if (!older || now - older->time >= kMeasured) {
    oldest = older;
    older = latest;
  }
}

void JobProgress::add_steps(const rendezvous::WorkerSteps& message, Time now) {
  if (message.attempt != attempt_) return;
  const std::size_t count = message.ranks.size();
  DDP_REQUIRE(
      count == message.steps.size() && count == message.losses.size() && count == message.phases.size(),
      count, message.steps.size(), message.losses.size(), message.phases.size());
  DDP_REQUIRE(count == message.counts.size() && count == message.seconds.size() &&
                  count == message.waits.size() && message.durations.size() % 2 == 0,
              count, message.counts.size(), message.seconds.size(), message.durations.size());
  for (std::size_t i = 0; i < message.ranks.size(); ++i) {
    const std::uint64_t step = message.steps[i];
    const auto [rank, first] = ranks_.try_emplace(message.ranks[i]);
    RankReport& report = rank->second.report;
    const std::uint64_t last = std::exchange(report.step, step);
    if (!first) {
      const auto before = ranks_at_.find(last);
      DDP_REQUIRE(before != ranks_at_.end() && before->second > 0, rank->first);
      // Ranks by step, so that the slowest and the foremost are known without a scan of 80,000 ranks.
      if (--before->second == 0) ranks_at_.erase(before);
    }
    ++ranks_at_[step];
    const double loss = std::bit_cast<double>(message.losses[i]);
    report.loss = std::isfinite(loss) ? std::optional(loss) : std::nullopt;
    report.phase = message.phases[i];
  }
  count_steps(message, now);
  if (ranks_at_.empty()) return;
  const std::uint64_t lowest = ranks_at_.begin()->first;
  // A stall that ends is booked before measure() moves the mark from which its time counts.
  if (marks_[0] && lowest > marks_[0]->step && stalled(now) > Time{0}) enter(phase_, now);
  measure(lowest, now);
  const bool repeats = lowest < reached_.value_or(0);
  if (phase_ == Phase::kTrain && repeats) phase_ = Phase::kRework;  // since all ranks run
  if (phase_ == Phase::kRework && !repeats) enter(Phase::kTrain, now);
}

void JobProgress::add_xids(const std::string& node, std::string_view lines) {
  std::istringstream text{std::string(lines)};
  for (std::string line; xid_lines_.size() < kMostXidLines && std::getline(text, line);) {
    const int number = xid_number(line);
    if (number != 0 && xid_lines_.insert(node + ' ' + line).second) ++sums_.xids[node][number];
  }
}

std::optional<JobProgress::RankReport> JobProgress::report_of(std::uint32_t rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return std::nullopt;
  const auto& [report, began, present, previous] = found->second;
  RankReport complete = report;
  // The lower one, since a step of unusual length is in one of them, and for each rank in another perhaps.
  if (previous.steps > 0) complete.step_seconds = std::min(present.mean(), previous.mean());
  return complete;
}

JobProgress::Figures JobProgress::figures(Time now) const {
  Figures figures = sums_;
  add_present_phase(figures.spent, now);
  figures.stalled = stalled(now);
  if (!ranks_at_.empty()) {
    figures.step = ranks_at_.begin()->first;
    figures.last_step = ranks_at_.rbegin()->first;
    const auto with_loss =
        std::ranges::find_if(ranks_, [](const auto& entry) { return entry.second.report.loss.has_value(); });
    if (with_loss != ranks_.end()) figures.loss = with_loss->second.report.loss;
  }
  const auto& [latest, older, oldest] = marks_;
  if (latest) figures.step_age = now - latest->time;
  const auto& from = oldest ? oldest : older;
  const bool marked = latest && from && latest->step > from->step;
  if (marked) {
    figures.step_seconds = std::chrono::duration<double>(latest->time - from->time).count() /
                           static_cast<double>(latest->step - from->step);
  }
  // A report comes up to a second after its step. In a short time only the workers' own measurement is right.
  if (!marked || latest->time - from->time < kMeasured / 2) {
    std::optional<double> slowest;
    for (const auto& [number, rank] : ranks_)
      if (rank.present.steps > 0) slowest = std::max(slowest.value_or(0), rank.present.mean());
    if (slowest) figures.step_seconds = slowest;
  }
  if (latest && figures.step_seconds) {
    const Time waited = now - latest->time;  // for the end of the present step
    if (waited > kMeasured && phase_ != Phase::kWait)
      figures.step_seconds = std::max(*figures.step_seconds, std::chrono::duration<double>(waited).count());
  }
  return figures;
}

}  // namespace ddp::launcher
