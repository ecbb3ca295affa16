#include "launcher/console_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ddp::launcher {

std::string skipped_text(std::uint64_t lines) {
  std::string number = std::to_string(lines);
  for (std::size_t at = number.size(); at > 3; at -= 3)
    number.insert(at - 3, ",");
  return "ddplaunch: … " + number + (lines == 1 ? " line" : " lines") + " not shown; the files have " +
         (lines == 1 ? "it" : "them");
}

void ConsoleQueue::push(int stream, bool ours, std::string_view lines) {
  if (lines.empty()) return;
  if (!segments_.empty() && segments_.back().stream == stream && segments_.back().ours == ours &&
      segments_.back().bytes.size() < join_) {
    segments_.back().bytes.append(lines);
  } else {
    segments_.push_back({stream, ours, 0, std::string(lines)});
  }
  waiting_[static_cast<std::size_t>(stream - 1)] += lines.size();
  queued_ += lines.size();
  if (skips_ && queued_ > kSkipAt) skip_ahead();
}

/// Drops the oldest lines of the workers until kKept bytes are left. What is dropped between two words of
/// ours becomes one gap, told before what stood next.
void ConsoleQueue::skip_ahead() {
  std::uint64_t skipped = 0;
  std::deque<Segment> kept;
  for (Segment& segment : segments_) {
    skipped += std::exchange(segment.skipped, 0);
    if (!segment.ours && queued_ > kKept) {
      std::size_t cut = std::min(queued_ - kKept, segment.bytes.size());
      cut = std::min(segment.bytes.find('\n', cut - 1), segment.bytes.size() - 1) + 1;
      skipped += static_cast<std::uint64_t>(
          std::count(segment.bytes.begin(), segment.bytes.begin() + static_cast<std::ptrdiff_t>(cut), '\n'));
      segment.bytes.erase(0, cut);
      waiting_[static_cast<std::size_t>(segment.stream - 1)] -= cut;
      queued_ -= cut;
      if (segment.bytes.empty()) continue;
    }
    segment.skipped = std::exchange(skipped, 0);
    kept.push_back(std::move(segment));
  }
  // Everything was one long line: the gap waits for the next one.
  if (skipped > 0) kept.push_back({1, true, skipped, {}});
  segments_ = std::move(kept);
}

ConsoleQueue::Segment ConsoleQueue::take() {
  Segment segment = std::move(segments_.front());
  segments_.pop_front();
  queued_ -= segment.bytes.size();
  if (segment.skipped > 0) {
    const std::string told = skipped_text(segment.skipped) + "\n";
    segment.bytes.insert(0, told);
    waiting_[static_cast<std::size_t>(segment.stream - 1)] += told.size();
  }
  return segment;
}

void ConsoleQueue::done(const Segment& segment) {
  waiting_[static_cast<std::size_t>(segment.stream - 1)] -= segment.bytes.size();
}

void ConsoleQueue::clear() {
  for (const Segment& segment : segments_)
    waiting_[static_cast<std::size_t>(segment.stream - 1)] -= segment.bytes.size();
  segments_.clear();
  queued_ = 0;
}

}  // namespace ddp::launcher
