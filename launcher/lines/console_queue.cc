#include "launcher/lines/console_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/result.h"

namespace ddp::launcher {

namespace {

/// The largest buffer kept for reuse.
constexpr std::size_t kKeptSpare = 1u << 20;

}  // namespace

std::string skipped_text(std::uint64_t lines) {
  std::string number = std::to_string(lines);
  for (std::size_t at = number.size(); at > 3; at -= 3)
    number.insert(at - 3, ",");
  return "ddplaunch: … " + number + (lines == 1 ? " line" : " lines") + " not shown; the files have " +
         (lines == 1 ? "it" : "them");
}

void ConsoleQueue::push(int stream, bool ours, std::string_view lines) {
  // A queue that skips must never lag by more than one write.
  while (skips_ && lines.size() > join_) {
    const std::size_t end = std::min(lines.find('\n', join_), lines.size() - 1) + 1;
    push_piece(stream, ours, lines.substr(0, end));
    lines.remove_prefix(end);
  }
  push_piece(stream, ours, lines);
}

void ConsoleQueue::push_piece(int stream, bool ours, std::string_view lines) {
  if (lines.empty()) return;
  if (!segments_.empty() && segments_.back().stream == stream && segments_.back().ours == ours &&
      segments_.back().bytes.size() < join_) {
    segments_.back().bytes.append(lines);
  } else {
    segments_.push_back({stream, ours, 0, std::string(lines)});
  }
  count(stream, ours, lines.size());
}

void ConsoleQueue::hand_over(int stream, bool ours, std::string& lines) {
  if (skips_ || lines.size() < join_ / 4) {
    push(stream, ours, lines);
  } else {
    const std::size_t size = lines.size();
    segments_.push_back({stream, ours, 0, std::exchange(lines, std::exchange(spare_, {}))});
    count(stream, ours, size);
  }
  lines.clear();
}

void ConsoleQueue::count(int stream, bool ours, std::size_t bytes) {
  DDP_REQUIRE(stream == 1 || stream == 2, stream);
  waiting_[static_cast<std::size_t>(stream - 1)] += bytes;
  queued_ += bytes;
  if (ours) ours_ += bytes;
  if (ours_ > kMostOurs) skip_ahead(true, queued_ - ours_ + kMostOurs / 2);
  if (queued_ > (skips_ ? kSkipAt : kMost)) skip_ahead(false, skips_ ? kKept : kMost / 2);
  DDP_REQUIRE(ours_ <= queued_ && queued_ <= backlog(), ours_, queued_, backlog());
}

/// Drops the oldest lines of ddplaunch (`ours`) or of the workers until `keep` bytes of both are left. A gap
/// between two segments is noted in the later one.
void ConsoleQueue::skip_ahead(bool ours, std::size_t keep) {
  std::uint64_t skipped = 0;
  std::deque<Segment> kept;
  for (Segment& segment : segments_) {
    skipped += std::exchange(segment.skipped, 0);
    if (segment.ours == ours && queued_ > keep) {
      std::size_t cut = std::min(queued_ - keep, segment.bytes.size());
      cut = std::min(segment.bytes.find('\n', cut - 1), segment.bytes.size() - 1) + 1;
      skipped += static_cast<std::uint64_t>(
          std::count(segment.bytes.begin(), segment.bytes.begin() + static_cast<std::ptrdiff_t>(cut), '\n'));
      segment.bytes.erase(0, cut);
      waiting_[static_cast<std::size_t>(segment.stream - 1)] -= cut;
      queued_ -= cut;
      if (ours) ours_ -= cut;
      if (segment.bytes.empty()) continue;
    }
    segment.skipped = std::exchange(skipped, 0);
    kept.push_back(std::move(segment));
  }
  // If nothing is left after the gap, an empty segment keeps its count.
  if (skipped > 0) kept.push_back({1, true, skipped, {}});
  segments_ = std::move(kept);
}

ConsoleQueue::Segment ConsoleQueue::take() {
  DDP_REQUIRE(!segments_.empty(), queued_);
  Segment segment = std::move(segments_.front());
  segments_.pop_front();
  DDP_REQUIRE(segment.bytes.size() <= queued_, segment.bytes.size(), queued_);
  queued_ -= segment.bytes.size();
  if (segment.ours) ours_ -= segment.bytes.size();
  if (segment.skipped > 0) {
    const std::string notice = skipped_text(segment.skipped) + "\n";
    segment.bytes.insert(0, notice);
    waiting_[static_cast<std::size_t>(segment.stream - 1)] += notice.size();
  }
  return segment;
}

void ConsoleQueue::done(Segment& segment) {
  std::size_t& waiting = waiting_[static_cast<std::size_t>(segment.stream - 1)];
  DDP_REQUIRE(segment.bytes.size() <= waiting, segment.bytes.size(), waiting);
  waiting -= segment.bytes.size();
  if (segment.bytes.capacity() > kKeptSpare) return;
  spare_ = std::move(segment.bytes);
  spare_.clear();
}

void ConsoleQueue::clear() {
  DDP_REQUIRE(queued_ <= backlog(), queued_, backlog());
  for (const Segment& segment : segments_)
    waiting_[static_cast<std::size_t>(segment.stream - 1)] -= segment.bytes.size();
  segments_.clear();
  queued_ = ours_ = 0;
}

}  // namespace ddp::launcher
