#include "launcher/report/slow_ranks.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

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
  waits_known_ = waits_known_ || waited > 0;
  if (rank.steps < kWindow) return;
  rank.before = std::exchange(rank.latest, rank.own / static_cast<double>(rank.steps));
  ++rank.windows;
  rank.steps = 0;
  rank.own = 0;
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

}  // namespace ddp::launcher
