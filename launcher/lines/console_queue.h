#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// Whole lines that wait for one output (sans-IO), which may be slower than its sources. A holding queue lets
/// its owner hold the sources back. A skipping queue drops the oldest lines of the workers and shows the
/// number of dropped lines instead. It drops ddplaunch's own lines only above kMostOurs.
class ConsoleQueue {
 public:
  static constexpr std::size_t kHigh = 4u << 20;  ///< bytes that may wait while holding; above: full
  /// Hard limit while holding, whatever the owner does. It covers bytes in transit, and bytes that agents
  /// send beyond their credit at a stop. Above it the oldest half is dropped.
  static constexpr std::size_t kMost = 128u << 20;
  /// Hard limit of ddplaunch's own lines, which repeat messages of nodes. Above it the oldest half is
  /// dropped.
  static constexpr std::size_t kMostOurs = 16u << 20;
  static constexpr std::size_t kLow = 1u << 20;
  static constexpr std::size_t kSkipAt = 1u << 20;  ///< bytes that may wait while skipping
  static constexpr std::size_t kKept = 64u << 10;   ///< bytes that stay after skipping: the latest

  struct Segment {
    int stream;  ///< 1 or 2
    bool ours;
    std::uint64_t skipped;  ///< lines missing before the bytes
    std::string bytes;
  };

  /// Segments of one kind are joined up to `join` bytes, so that one write takes many lines.
  ConsoleQueue(bool skips, std::size_t join) : skips_(skips), join_(join) {}

  void push(int stream, bool ours, std::string_view lines);
  /// Does the same for many lines without a copy. Leaves an empty string with memory to reuse.
  void hand_over(int stream, bool ours, std::string& lines);
  bool empty() const { return segments_.empty(); }
  /// Returns the oldest segment, with a first line about its gap if it has one. Its bytes still count as
  /// waiting until done() is called with it.
  Segment take();
  void done(Segment& segment);
  void clear();

  std::size_t waiting(int stream) const { return waiting_[static_cast<std::size_t>(stream - 1)]; }
  bool full() const { return !skips_ && backlog() > kHigh; }
  bool has_room() const { return backlog() < kLow; }
  bool skips() const { return skips_; }

 private:
  std::size_t backlog() const { return waiting_[0] + waiting_[1]; }
  void push_piece(int stream, bool ours, std::string_view lines);
  void count(int stream, bool ours, std::size_t bytes);
  void skip_ahead(bool ours, std::size_t keep);

  bool skips_;
  std::size_t join_;
  std::deque<Segment> segments_;
  std::string spare_;                     ///< of a finished segment
  std::size_t queued_ = 0;                ///< bytes in segments_
  std::size_t ours_ = 0;                  ///< bytes in segments_ of ddplaunch's own lines
  std::array<std::size_t, 2> waiting_{};  ///< by stream, including bytes taken but not done
};

/// Returns "… 12,345 lines not shown; the files have them".
std::string skipped_text(std::uint64_t lines);

}  // namespace ddp::launcher
