// ConsoleQueue, which bounds and skips, without threads; ConsoleLane, first its owner's side and then its
// thread; and Console, which has a lane for each output.
#include "launcher/output/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>

#include "base/files.h"
#include "base/result.h"
#include "base/text.h"

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

/// Returns when something must be written; max: only after the next event. The order is that of precedence.
/// Nothing goes to a held terminal. Lines wait only where rows must be drawn again below them.
/// suspend() waits until the rows are gone. A change of rows waits for the next frame. No event tells this
/// thread that the terminal was resized, so rows on the screen are drawn again now and then.
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

// ---- Console

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kBlocked{10};
constexpr milliseconds kSuspendTime{200};
constexpr int kTerminalTime = 100;  ///< ms that a terminal may accept nothing

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  if (::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
      first.st_ino == second.st_ino)
    return true;
  // One terminal has two names: its own and /dev/tty. Both belong to the session or neither does.
  const pid_t session = ::tcgetsid(a);
  return session > 0 && session == ::tcgetsid(b);
}

ConsoleLane::Target target_of(int out, int err) {
  const char* const term = std::getenv("TERM");
  const bool moves = term && *term && std::string_view(term) != "dumb";
  const bool terminal = ::isatty(out) != 0;
  return {{out, err}, terminal, terminal && moves};
}

/// Opens the user's terminal, which may be neither stdout nor stderr. Writes to it never wait.
UniqueFd open_terminal() {
  return UniqueFd(::open("/dev/tty", O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
}

/// Writes to the terminal. Waits for a stopped one (Ctrl-S) only for a moment.
void write_terminal(int terminal, std::string_view text) {
  // In the background a write could stop the launcher ("stty tostop").
  sigset_t stop;
  sigset_t before;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTTOU);
  ::pthread_sigmask(SIG_BLOCK, &stop, &before);
  while (!text.empty()) {
    const ssize_t count = ::write(terminal, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    pollfd room{terminal, POLLOUT, 0};
    if (count < 0 && (errno != EAGAIN || ::poll(&room, 1, kTerminalTime) != 1)) break;
    text.remove_prefix(count < 0 ? 0 : static_cast<std::size_t>(count));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// True for a pipe or socket whose reader has gone.
bool has_no_reader(int fd) {
  pollfd state{fd, POLLOUT, 0};
  return ::isatty(fd) == 0 && ::poll(&state, 1, 0) == 1 && (state.revents & POLLERR) != 0;
}

namespace fs = std::filesystem;

/// Looks for an open read end of `pipe`, given as its link text: "pipe:[4711]" or the path of a FIFO. The
/// files behind other links are not touched, because they may lie on a network disk that hangs.
bool has_read_end(const fs::path& process, const fs::path& pipe) {
  for (const fs::path& entry : list_directory(process / "fd")) {
    std::error_code gone;
    struct stat link {};
    // The link's own permissions show how the file was opened.
    if (fs::read_symlink(entry, gone) == pipe && ::lstat(entry.c_str(), &link) == 0 &&
        (link.st_mode & S_IRUSR) != 0)
      return true;
  }
  return false;
}

}  // namespace

Console::Console(asio::any_io_executor loop, std::function<void()> drained, ConsolePolicy policy, int out,
                 int err)
    : loop_(loop) {
  // One lane if both are the same terminal or file: two threads would mix their lines.
  const bool one = same_file(out, err);
  lanes_.push_back(ConsoleLane::start(target_of(out, one ? err : out), policy, loop, drained));
  if (!one) lanes_.push_back(ConsoleLane::start(target_of(err, err), policy, loop, drained));
}

Console::~Console() {
  close();
}

bool Console::full() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->full(); });
}

void Console::write(int stream, std::string_view lines) {
  if (stream == 2 && terminal_)
    write_terminal(terminal_.get(), lines);
  else
    lane_of(stream).push(stream, true, lines);
}

bool Console::use_terminal() {
  if (!has_no_reader(lane_of(2).target().fds[1])) return false;
  terminal_ = open_terminal();
  if (terminal_ && ::tcgetpgrp(terminal_.get()) != ::getpgrp()) terminal_.reset();
  return static_cast<bool>(terminal_);
}

void Console::watch() {
  for (std::size_t i = 0; i < lanes_.size() && !reported_; ++i) {
    if (lanes_[i]->full() && lanes_[i]->stuck() >= kBlocked) report_blocked(i);
  }
}

/// Reports the blocking reader, since unexplained back-pressure looks like a hang of the training.
void Console::report_blocked(std::size_t lane) {
  reported_ = true;
  const std::string reader = pipe_reader(lanes_[lane]->target().fds[lane]);
  const std::string text =
      std::string("ddplaunch: warning: ") + "nothing has been read from " +
      (lane == 0 ? "stdout" : "stderr") + " for 10 s; " +
      (flushing_ ? "the job has ended, but its last output is blocked" : "the workers are blocked") +
      (reader.empty() ? "" : "; its reader is " + reader) + "; --console drop skips lines instead\n";
  // If stderr shares the blocked reader, or is blocked itself, only the terminal is left for the warning.
  const bool by_stderr = lane == 0 && lanes_.size() == 2 && lanes_[1]->stuck() < seconds(1);
  if (by_stderr)
    write(2, text);
  else
    write_terminal(open_terminal().get(), text);
}

void Console::suspend() {
  for (const auto& lane : lanes_)
    lane->suspend(true, kSuspendTime);
}

void Console::resume() {
  for (const auto& lane : lanes_)
    lane->suspend(false, kSuspendTime);
}

bool Console::flush(int stream, milliseconds limit) {
  flushing_ = true;
  while (!lane_of(stream).flush(stream, std::min<milliseconds>(limit, seconds(1)))) {
    watch();
    if (limit <= seconds(1)) return false;
    limit -= seconds(1);
  }
  return true;
}

void Console::close() {
  for (const auto& lane : lanes_)
    lane->finish();
  for (const auto& lane : lanes_)
    lane->join();
}

void Console::abandon() {
  for (const auto& lane : lanes_)
    lane->abandon();
}

std::string pipe_reader(int fd) {
  struct stat kind {};
  if (::fstat(fd, &kind) != 0 || !S_ISFIFO(kind.st_mode)) return {};
  std::error_code error;
  const fs::path pipe = fs::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
  if (error) return {};
  for (const fs::path& entry : list_directory("/proc")) {
    const std::string pid = entry.filename().string();
    if (!is_digits(pid) || pid == std::to_string(::getpid()) || !has_read_end(entry, pipe)) continue;
    return first_line(entry / "comm") + " (pid " + pid + ")";
  }
  return {};
}

}  // namespace ddp::launcher
