#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/lines/bar_fold.h"
#include "launcher/lines/output_lines.h"

namespace ddp::launcher {

/// Tracks the open rows of all streams over time (sans-IO). It decides which rows are shown below the lines,
/// and when rows that no bar rewrites become lines. If no rows can be shown below the lines, it writes a
/// bar's row as a line, at most every kSample. The driver
///   1. calls changed() after each change of an entry's lines,
///   2. calls tick() at the time that due() returns,
///   3. shows rows() of a stream when take_change() says that they are new.
class LiveBoard {
 public:
  using Time = std::chrono::nanoseconds;  ///< of a monotonic clock
  static constexpr Time kFrame = std::chrono::milliseconds(66);
  static constexpr Time kQuiet = std::chrono::milliseconds(200);
  static constexpr Time kLongQuiet = std::chrono::seconds(2);
  static constexpr Time kSample = std::chrono::seconds(30);

  /// One stream of one rank. The driver owns it and must call clear() before destroying it.
  struct Entry {
    Entry(Label label, std::uint32_t of_rank, int of_node, int of_stream)
        : lines(std::move(label)), rank(of_rank), node(of_node), stream(of_stream) {}
    LineAssembler lines;
    std::uint32_t rank;
    int node;
    int stream;  ///< 1 or 2

   private:
    friend class LiveBoard;
    std::uint64_t seen_ = 0;  ///< revision of `lines`
    std::uint64_t line_ = 0;  ///< number of the unfinished line, from 1; 0: none yet
    Time line_since_{0};
    Time since_{0};  ///< when a tick saw the latest change
    bool watched_ = false;
    bool touched_ = false;
    bool settled_ = false;
    bool on_board_ = false;
  };

  /// `has_view` is given for stdout and stderr.
  LiveBoard(Bars bars, std::array<bool, 2> has_view)
      : sides_{Side(bars, has_view[0]), Side(bars, has_view[1])} {}

  void changed(Entry& entry) {
    if (entry.seen_ != entry.lines.revision()) note(entry);
  }
  /// Appends the lines that are due, for stdout and stderr.
  void tick(Time now, std::array<std::string, 2>& lines);
  /// Returns when tick() must be called; unset: not before the next change.
  std::optional<Time> due() const;
  bool take_change(int stream) { return std::exchange(side(stream).rows_changed, false); }
  std::vector<LiveRow> rows(int stream) const {
    return sides_[static_cast<std::size_t>(stream - 1)].fold.rows();
  }
  /// Forgets all entries.
  void clear();

 private:
  struct Side {
    Side(Bars bars, bool view) : fold(bars), has_view(view) {}
    BarFold fold;
    bool has_view;
    bool rows_changed = false;  ///< rows() has changed
    bool unsampled = false;     ///< changed since the last sample
    std::optional<Time> sample_at;
  };
  Side& side(int stream) { return sides_[static_cast<std::size_t>(stream - 1)]; }
  void note(Entry& entry);
  bool take_sample(Entry& entry, Time now, std::string& lines);
  void post(Entry& entry, const std::string& rows);
  void sample(Side& side, Time now, std::string& lines) const;

  std::array<Side, 2> sides_;
  std::vector<Entry*> watched_;
  Time last_tick_{0};
};

}  // namespace ddp::launcher
