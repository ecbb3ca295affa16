#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/job/job_spec.h"
#include "launcher/lines/line_patterns.h"

namespace ddp::launcher {

/// Reads "REGEX=ACTION". The last '=' separates them. The error tells what is wrong with `text`.
Result<WatchRule> parse_watch_rule(const std::string& text);

/// Finds the lines of workers' output that the rules of --watch name (sans-IO; docs/users/hang.md). Lines of
/// progress bars count, too: CR ends a line as LF does.
class LineWatch {
 public:
  /// Ranks that are named for a rule in an attempt. Those that follow are only counted, so that thousands of
  /// ranks cannot bury other messages.
  static constexpr std::size_t kMostNamed = 8;

  /// The patterns of the rules are valid.
  explicit LineWatch(const std::vector<WatchRule>& rules);

  struct Hit {
    std::size_t rule = 0;
    std::string line;  ///< its first bytes, raw
  };
  /// Takes bytes of one stream of a rank, in order; empty: the stream has ended. Attempts follow each other.
  /// Returns the first line of the rank for each rule, once in an attempt.
  std::vector<Hit> add(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream,
                       std::string_view bytes);
  /// Returns a line for each rule of which add() has not told all: "--watch 'nan=report': 34 lines of ranks
  /// 0-7". Counting begins anew.
  std::vector<std::string> take_counts();

 private:
  struct Count {
    std::uint64_t lines = 0;
    std::size_t named = 0;
    std::set<int> ranks;
  };
  std::vector<WatchRule> rules_;
  LinePatterns patterns_;
  std::optional<std::uint32_t> attempt_;
  std::map<std::pair<std::uint32_t, std::uint8_t>, LinePatterns::Line> open_;  ///< by rank and stream
  std::vector<Count> counts_;                                                  ///< of each rule
};

}  // namespace ddp::launcher
