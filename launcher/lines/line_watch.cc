#include "launcher/lines/line_watch.h"

#include <algorithm>

#include "base/result.h"
#include "base/text.h"

namespace ddp::launcher {

Result<WatchRule> parse_watch_rule(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  const std::string action = equals == std::string::npos ? "" : text.substr(equals + 1);
  const auto known = std::ranges::find(WatchRule::kActions, action);
  if (known == WatchRule::kActions.end())
    return Error{ErrorCode::kUsage, "give REGEX=ACTION, and as ACTION report, hang or fail", 0};
  WatchRule rule{text.substr(0, equals), static_cast<WatchRule::Action>(known - WatchRule::kActions.begin())};
  LinePatterns patterns;
  DDP_TRY(patterns.add(rule.pattern));
  return rule;
}

LineWatch::LineWatch(const std::vector<WatchRule>& rules) : rules_(rules), counts_(rules.size()) {
  for (const WatchRule& rule : rules_) {
    const auto added = patterns_.add(rule.pattern);
    DDP_REQUIRE(added.has_value(), rule.pattern);
  }
}

std::vector<LineWatch::Hit> LineWatch::add(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream,
                                           std::string_view bytes) {
  if (attempt_ != attempt) {
    attempt_ = attempt;
    open_.clear();
    counts_.assign(rules_.size(), {});
  }
  LinePatterns::Line& line = open_[{rank, stream}];
  std::vector<Hit> hits;
  if (bytes.empty() && !line.ended && !line.text.empty()) bytes = "\n";  // the last line lacks its end
  while (!bytes.empty()) {
    bytes.remove_prefix(patterns_.read(bytes, line));
    if (!line.ended || line.found == 0) continue;
    for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
      if ((line.found >> rule & 1) == 0) continue;
      Count& count = counts_[rule];
      ++count.lines;
      if (!count.ranks.insert(static_cast<int>(rank)).second || count.named == kMostNamed) continue;
      ++count.named;
      hits.push_back({rule, line.text});
    }
  }
  return hits;
}

std::vector<std::string> LineWatch::take_counts() {
  std::vector<std::string> texts;
  for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
    const Count count = std::exchange(counts_[rule], {});
    if (count.lines <= count.named) continue;
    texts.push_back(rules_[rule].text() + ": " + counted(count.lines, "line") + " of " +
                    format_ranks({count.ranks.begin(), count.ranks.end()}));
  }
  return texts;
}

}  // namespace ddp::launcher
