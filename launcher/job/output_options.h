#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ddp::launcher {

/// Ranks as "0,8-15": closed ranges, sorted, not touching. Empty: every rank.
using RankRanges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

/// torchrun's --redirects and --tee: which streams (bit 0: stdout, bit 1: stderr) of which local rank.
struct StreamChoice {
  std::uint8_t others = 0;               ///< of the local ranks that are not named
  std::map<int, std::uint8_t> by_local;  ///< of those that are
  bool has(int local_rank, std::uint8_t stream) const {
    const auto found = by_local.find(local_rank);
    return ((found == by_local.end() ? others : found->second) >> (stream - 1) & 1) != 0;
  }
  bool any() const { return others != 0 || !by_local.empty(); }
  /// The streams of either.
  friend StreamChoice operator|(const StreamChoice& one, const StreamChoice& other);
};

enum class Bars : std::uint8_t { kRank0, kNode, kAll, kOff };      ///< --bars
enum class ConsolePolicy : std::uint8_t { kAuto, kBlock, kDrop };  ///< --console

/// What the user wants of the workers' output (docs/output.md).
struct OutputOptions {
  std::string label = "[{host}:{rank}] ";
  bool label_on = true;
  RankRanges show_ranks;                ///< --show-ranks: the others go to the files only
  std::vector<int> local_ranks_filter;  ///< --local-ranks-filter, by local rank; empty: all
  StreamChoice redirects;               ///< --redirects: to files in log_dir, and not shown
  StreamChoice tee;                     ///< --tee: to files in log_dir, and shown
  std::string log_dir;                  ///< --log-dir, absolute; empty: none
  std::uint64_t log_max_size = 0;   ///< --log-max-size, bytes of one file before it is rotated; 0: no limit
  std::uint32_t log_max_parts = 0;  ///< parts of a rotated file that stay, the newest; 0: all
  bool jsonl = false;               ///< --jsonl: committed lines as JSON in the job directory
  bool fold = false;                ///< --fold: alike lines of many ranks become one
  Bars bars = Bars::kRank0;
  ConsolePolicy console = ConsolePolicy::kAuto;

  /// Whether --show-ranks and --local-ranks-filter let this rank pass.
  bool selects(std::uint32_t rank, int local_rank) const;
  /// Whether lines of this stream (1, 2) are shown, or go to the files only.
  bool shows(std::uint32_t rank, int local_rank, std::uint8_t stream) const;
  /// The streams that are copied to log_dir.
  StreamChoice copied() const;
};

}  // namespace ddp::launcher
