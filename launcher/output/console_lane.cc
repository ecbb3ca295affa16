// ConsoleQueue, which bounds and skips, without threads; then ConsoleLane, first its owner's side and then
// its thread.
#include "launcher/output/console_lane.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <string>
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
  // A copy of a small piece is cheaper than a segment of its own, and the caller keeps its buffer.
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
  // Down to half, so that the next line does not scan the queue again.
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
      // To the end of a line, so that what is shown begins with a whole one.
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

ConsoleQueue::Segment ConsoleQueue::pop() {
  DDP_REQUIRE(!segments_.empty(), queued_);
  Segment segment = std::move(segments_.front());
  segments_.pop_front();
  DDP_REQUIRE(segment.bytes.size() <= queued_, segment.bytes.size(), queued_);
  queued_ -= segment.bytes.size();
  if (segment.ours) ours_ -= segment.bytes.size();
  if (segment.skipped > 0) {
    const std::string notice = skipped_text(segment.skipped) + "\n";
    segment.bytes.insert(0, notice);
    // done() takes off what was written, and the notice is part of that.
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

namespace {

using std::chrono::milliseconds;

// Minimum interval between draws of live rows. Lines that arrive while rows are shown are collected for
// kLineGap.
constexpr milliseconds kFrame{66};
constexpr milliseconds kLineGap{15};
// Interval of the check for a resize while rows are shown; each draw checks too.
constexpr milliseconds kSizeCheck{300};

// Bytes per write: enough for speed, but few where lines are skipped, so that output lags little.
std::size_t join_size(const ConsoleLane::Target& target) {
  if (target.is_terminal) return 16u << 10;
  return 64u << 10;
}

int write_out(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    // Larger writes to a file get memory that is not yet in use, which is slow on a virtual machine.
    const ssize_t count = ::write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), 64u << 10));
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {  // another process made the shared descriptor non-blocking
      pollfd wait{fd, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

TerminalView::Size terminal_size(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

namespace {

// Drawing over the output of the shell or of another foreground program would break it.
bool in_background(int fd) {
  const pid_t front = ::tcgetpgrp(fd);
  return front > 0 && front != ::getpgrp();
}

}  // namespace

bool terminal_reflows() {
  const char* const name = std::getenv("TERM");
  const std::string_view term = name ? name : "";
  if (std::getenv("TMUX")) return true;
  return !std::getenv("XTERM_VERSION") && term.substr(0, 5) != "linux" && term.substr(0, 4) != "rxvt";
}

std::shared_ptr<ConsoleLane> ConsoleLane::start(Target target, ConsolePolicy policy,
                                                asio::any_io_executor loop, std::function<void()> drained) {
  std::shared_ptr<ConsoleLane> lane(new ConsoleLane(target, policy, std::move(loop), std::move(drained)));
  lane->thread_ = std::thread([lane] { lane->run(); });
  return lane;
}

ConsoleLane::ConsoleLane(Target target, ConsolePolicy policy, asio::any_io_executor loop,
                         std::function<void()> drained)
    : target_(target),
      loop_(std::move(loop)),
      drained_(std::move(drained)),
      view_(terminal_reflows()),
      queue_(policy == ConsolePolicy::kDrop || (policy == ConsolePolicy::kAuto && target.is_terminal),
             join_size(target)),
      direct_(!target.is_terminal && !queue_.skips()) {}

void ConsoleLane::push(int stream, bool ours, std::string_view lines) {
  if (lines.empty()) return;
  std::unique_lock lock(mutex_);
  if (broken_[static_cast<std::size_t>(stream - 1)] != 0 || abandoned_) return;
  queue_.push(stream, ours, lines);
  wake(lock);
}

void ConsoleLane::hand_over(int stream, std::string& lines) {
  if (lines.empty()) return;
  std::unique_lock lock(mutex_);
  if (broken_[static_cast<std::size_t>(stream - 1)] != 0 || abandoned_) return lines.clear();
  // Only if nothing is before these lines, neither in the queue nor with the thread.
  if (direct_ && !writing_ && queue_.empty()) write_now(stream, lines);
  if (lines.empty()) return;
  queue_.hand_over(stream, false, lines);
  wake(lock);
}

/// If nothing is queued, writes directly what the output takes without waiting. This avoids a thread switch.
/// Pipes, sockets and devices support it; terminals and most files do not.
void ConsoleLane::write_now(int stream, std::string& lines) {
  const iovec piece{lines.data(), lines.size()};
  const ssize_t count =
      ::pwritev2(target_.fds[static_cast<std::size_t>(stream - 1)], &piece, 1, -1, RWF_NOWAIT);
  if (count > 0)
    lines.erase(0, static_cast<std::size_t>(count));
  else if (count < 0 && errno != EAGAIN && errno != EINTR)
    direct_ = false;  // EOPNOTSUPP, or an error that the thread will report
}

/// Notifies without the mutex; otherwise the thread would wake only to wait for it.
void ConsoleLane::wake(std::unique_lock<std::mutex>& lock) {
  was_full_ = was_full_ || queue_.full();
  const bool idle = !writing_;
  lock.unlock();
  if (idle) wake_.notify_one();
}

void ConsoleLane::show(int stream, std::vector<LiveRow> rows) {
  if (!target_.has_view) return;
  const std::lock_guard lock(mutex_);
  std::vector<LiveRow>& mine = rows_[static_cast<std::size_t>(stream - 1)];
  if (mine == rows) return;
  mine = std::move(rows);
  rows_changed_ = true;
  if (!writing_) wake_.notify_one();
}

void ConsoleLane::suspend(bool away, milliseconds limit) {
  if (!target_.is_terminal) return;
  std::unique_lock lock(mutex_);
  away_ = rows_changed_ = true;
  held_ = false;
  wake_.notify_one();
  if (away) written_.wait_for(lock, limit, [&] { return !rows_on_screen_ && queue_.empty(); });
  away_ = held_ = away;
}

bool ConsoleLane::full() const {
  const std::lock_guard lock(mutex_);
  return queue_.full();
}

bool ConsoleLane::flush(int stream, milliseconds limit) {
  std::unique_lock lock(mutex_);
  return written_.wait_for(lock, limit, [&] { return queue_.waiting(stream) == 0; });
}

int ConsoleLane::broken(int stream) const {
  const std::lock_guard lock(mutex_);
  return broken_[static_cast<std::size_t>(stream - 1)];
}

ConsoleLane::Clock::duration ConsoleLane::stuck() const {
  const std::lock_guard lock(mutex_);
  return writing_ ? Clock::now() - writing_since_ : Clock::duration::zero();
}

void ConsoleLane::finish() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  wake_.notify_one();
}

void ConsoleLane::join() {
  if (thread_.joinable()) thread_.join();
}

void ConsoleLane::abandon() {
  const std::lock_guard lock(mutex_);
  closing_ = abandoned_ = true;
  queue_.clear();
  wake_.notify_one();
  if (thread_.joinable()) thread_.detach();
}

// ---- its thread

void ConsoleLane::run() {
  std::unique_lock lock(mutex_);
  while (wait_for_work(lock))
    write_next(lock);
}

/// Returns when something must be written; max: only after the next event.
ConsoleLane::Clock::time_point ConsoleLane::due() const {
  if (held_) return Clock::time_point::max();
  if (!queue_.empty()) return rows_on_screen_ ? drawn_ + kLineGap : Clock::time_point::min();
  if (away_ && rows_on_screen_) return Clock::time_point::min();
  if (rows_changed_) return drawn_ + kFrame;
  return rows_on_screen_ ? drawn_ + kSizeCheck : Clock::time_point::max();
}

/// Returns false when all is written and nothing more will come.
bool ConsoleLane::wait_for_work(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    if (abandoned_) return false;
    // At the end the rows are removed, so that the shell's prompt does not stand among them.
    if (closing_) return !queue_.empty() || rows_on_screen_;
    const Clock::time_point when = due();
    if (when <= Clock::now()) return true;
    if (when == Clock::time_point::max())
      wake_.wait(lock);
    else
      wake_.wait_until(lock, when);
  }
}

std::vector<LiveRow> ConsoleLane::rows_to_show() const {
  std::vector<LiveRow> rows;
  if (away_ || (closing_ && queue_.empty())) return rows;
  rows = rows_[0];
  rows.insert(rows.end(), rows_[1].begin(), rows_[1].end());
  return rows;
}

void ConsoleLane::write_next(std::unique_lock<std::mutex>& lock) {
  ConsoleQueue::Segment segment{1, false, 0, {}};
  if (!queue_.empty()) segment = queue_.pop();
  const auto index = static_cast<std::size_t>(segment.stream - 1);
  const std::vector<LiveRow> rows = rows_to_show();
  rows_changed_ = false;
  if (broken_[index] == 0) {
    writing_ = true;
    writing_since_ = Clock::now();
    lock.unlock();
    const int error = write_segment(segment, rows);
    lock.lock();
    writing_ = false;
    // After abandon() the loop may have ended, so nothing is posted any more.
    if (abandoned_) return;
    broken_[index] = error;
  }
  drawn_ = Clock::now();
  rows_on_screen_ = broken_[index] == 0 && view_.shows_rows();
  queue_.done(segment);
  written_.notify_all();
  if (was_full_ && queue_.has_room()) {
    was_full_ = false;
    asio::post(loop_, drained_);
  }
}

int ConsoleLane::write_segment(const ConsoleQueue::Segment& segment, const std::vector<LiveRow>& rows) {
  const int fd = target_.fds[static_cast<std::size_t>(segment.stream - 1)];
  if (!target_.has_view) return write_out(fd, segment.bytes);
  if (in_background(fd)) {
    // Another program draws now. Where the rows were is not ours any more, so they are not erased either.
    view_.forget();
    return write_out(fd, view_.draw(segment.bytes, {}, terminal_size(fd)));
  }
  return write_out(fd, view_.draw(segment.bytes, rows, terminal_size(fd)));
}

}  // namespace ddp::launcher
