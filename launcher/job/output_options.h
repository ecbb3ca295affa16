#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ddp::launcher {

/// Ranks as "0,8-15": closed ranges, sorted, not touching. Empty: every rank.
using RankRanges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

/// torchrun's --redirects and --tee: the streams (bit 0: stdout, bit 1: stderr) of each local rank.
struct StreamChoice {
  std::uint8_t others = 0;               ///< of local ranks that are not listed
  std::map<int, std::uint8_t> by_local;  ///< of listed local ranks
  bool has(int local_rank, std::uint8_t stream) const {
    const auto found = by_local.find(local_rank);
    return ((found == by_local.end() ? others : found->second) >> (stream - 1) & 1) != 0;
  }
  bool any() const { return others != 0 || !by_local.empty(); }
  /// Returns the streams that are in either choice.
  friend StreamChoice operator|(const StreamChoice& one, const StreamChoice& other);
};

enum class Bars : std::uint8_t { kRank0, kNode, kAll, kOff };      ///< --bars
enum class ConsolePolicy : std::uint8_t { kAuto, kBlock, kDrop };  ///< --console

/// The user's options for the workers' output (docs/users/output.md).
struct OutputOptions {
  std::string label = "[{host}:{rank}] ";
  bool label_on = true;
  RankRanges show_ranks;                ///< --show-ranks: other ranks go to the files only
  std::vector<int> local_ranks_filter;  ///< --local-ranks-filter, by local rank; empty: all
  StreamChoice redirects;               ///< --redirects: to files in log_dir, not shown
  StreamChoice tee;                     ///< --tee: to files in log_dir, and shown
  std::string log_dir;                  ///< this run's, below --log-dir; empty: none
  std::uint64_t log_max_size = 0;   ///< --log-max-size, bytes of one file before it is rotated; 0: no limit
  std::uint32_t log_max_parts = 0;  ///< parts of a rotated file to keep, the newest; 0: all
  bool jsonl = false;               ///< --jsonl: committed lines as JSON in the job directory
  bool fold = false;                ///< --fold: equal lines of many ranks become one
  Bars bars = Bars::kRank0;
  ConsolePolicy console = ConsolePolicy::kAuto;

  /// True if --show-ranks and --local-ranks-filter include this rank.
  bool selects(std::uint32_t rank, int local_rank) const;
  /// True if lines of this stream (1, 2) are shown; otherwise they go to the files only.
  bool shows(std::uint32_t rank, int local_rank, std::uint8_t stream) const;
  /// Returns the streams that are copied to log_dir.
  StreamChoice copied() const;
};

}  // namespace ddp::launcher
