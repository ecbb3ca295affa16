#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/output_options.h"
#include "launcher/lines/terminal_view.h"

namespace ddp::launcher {

/// How much of `row` is a frame of the bar that drew `previous` before, in bytes; 0 when that cannot be said
/// for sure. A program that logs while its bar stands writes right behind it ("45%|### | 9/20
/// [00:01]ERROR…"), and only the likeness of the frames tells where the log line begins: numbers and runs of
/// fill characters may differ in value and length, everything else must be equal.
std::size_t frame_length(std::string_view previous, std::string_view row);

/// Without the spaces at its end.
std::string_view trimmed(std::string_view row);

/// How far a bar has come, in percent: its first "45%" or "9/20"; nothing when it does not say.
std::optional<double> progress_of(std::string_view row);

/// The live rows of one stream of all ranks, folded to what is shown of them (--bars): the rows of the first
/// rank that has some, of the job or of each node, with the spread of the others; or the rows of all.
class BarFold {
 public:
  explicit BarFold(Bars bars) : bars_(bars) {}

  /// The open rows of a rank now, '\n' between them; empty: it has none any more. `label` stands before each
  /// row.
  void set(std::uint32_t rank, int node, std::string_view label, std::string_view rows);
  std::vector<LiveRow> rows() const;
  bool empty() const { return ranks_.empty(); }
  void clear() { ranks_.clear(); }

 private:
  struct Entry {
    int node = 0;
    std::string label;
    std::vector<std::string> rows;
    std::vector<std::optional<double>> progress;  ///< of each row
  };
  using Members = std::vector<const Entry*>;
  static void append_folded(const Members& members, std::vector<LiveRow>& out);

  Bars bars_;
  std::map<std::uint32_t, Entry> ranks_;  ///< those that have rows
};

}  // namespace ddp::launcher
