#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/job_spec.h"
#include "launcher/lines/terminal_view.h"

namespace ddp::launcher {

/// Returns how many bytes of `row` are a frame of the bar that drew `previous`; 0 when this is uncertain. A
/// program that logs while its bar is open writes right behind the bar ("45%|### | 9/20 [00:01]ERROR…"). Only
/// the similarity of the frames shows where the log line begins. Numbers and runs of fill characters may
/// differ in value and length; everything else must be equal.
std::size_t frame_length(std::string_view previous, std::string_view row);

/// Returns true if `row` is a further frame of the bar that drew `previous`, with the same limits.
bool is_same_bar(std::string_view previous, std::string_view row);

/// Returns a line of LineAssembler without its color sequences.
std::string without_colours(std::string_view row);

/// Returns the row without trailing spaces.
std::string_view trimmed(std::string_view row);

/// Returns the progress of a bar in percent, from its first "45%" or "9/20"; unset if it has none.
std::optional<double> progress_of(std::string_view row);

/// Folds the live rows of one stream of all ranks to the rows that are shown (--bars). Either it shows the
/// rows of the first rank that has some, in the job or per node, with the spread of the others; or it shows
/// the rows of all ranks.
class BarFold {
 public:
  explicit BarFold(Bars bars) : bars_(bars) {}

  /// Sets the open rows of a rank, separated by '\n'; empty: it has none. `label` is put before each row.
  void set(std::uint32_t rank, int node, std::string_view label, std::string_view rows);
  std::vector<LiveRow> rows() const;
  bool empty() const { return ranks_.empty(); }
  void clear() { ranks_.clear(); }

 private:
  struct Entry {
    int node = 0;
    std::string label;
    std::vector<std::string> rows;
    std::vector<std::optional<double>> progress;  ///< by row
  };
  using Members = std::vector<const Entry*>;
  static void append_folded(const Members& members, std::vector<LiveRow>& out);

  Bars bars_;
  std::map<std::uint32_t, Entry> ranks_;  ///< ranks that have rows
};

}  // namespace ddp::launcher
