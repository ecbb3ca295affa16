#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// Whole lines that wait for one output (sans-IO). When it does not take them as fast as they come, a queue
/// that holds lets its owner hold the sources back; one that skips drops the oldest lines of the workers, and
/// words of ours only above kMostOurs, and puts in their place how many there were.
class ConsoleQueue {
 public:
  static constexpr std::size_t kHigh = 4u << 20;  ///< bytes that may wait while holding; above: full
  /// Never more while holding, whatever its owner does: what is on its way then, and what agents send at a
  /// stop beyond their credit. Above, the oldest half is dropped.
  static constexpr std::size_t kMost = 128u << 20;
  /// The same of words of ours, which repeat what nodes say. Above, the oldest half is dropped.
  static constexpr std::size_t kMostOurs = 16u << 20;
  static constexpr std::size_t kLow = 1u << 20;
  static constexpr std::size_t kSkipAt = 1u << 20;  ///< bytes that may wait while skipping
  static constexpr std::size_t kKept = 64u << 10;   ///< of them that stay: the latest

  struct Segment {
    int stream;  ///< 1 or 2
    bool ours;
    std::uint64_t skipped;  ///< lines that are missing before the bytes
    std::string bytes;
  };

  /// `join`: segments of one kind are joined up to this size: one write for many lines.
  ConsoleQueue(bool skips, std::size_t join) : skips_(skips), join_(join) {}

  void push(int stream, bool ours, std::string_view lines);
  /// The same for much at once: takes the lines without a copy, leaves an empty string, with memory to use
  /// again.
  void hand_over(int stream, bool ours, std::string& lines);
  bool empty() const { return segments_.empty(); }
  /// The oldest segment, its own gap told of in its first line. It still counts as waiting until done() is
  /// called with it.
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
  std::string spare_;                     ///< of a segment that is done
  std::size_t queued_ = 0;                ///< bytes in segments_
  std::size_t ours_ = 0;                  ///< of them, words of ours
  std::array<std::size_t, 2> waiting_{};  ///< of each stream, those taken but not done included
};

/// "… 12,345 lines not shown; the files have them".
std::string skipped_text(std::uint64_t lines);

}  // namespace ddp::launcher
