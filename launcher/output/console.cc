#include "launcher/output/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/files.h"

namespace ddp::launcher {
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
    if (!std::all_of(pid.begin(), pid.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (pid == std::to_string(::getpid()) || !has_read_end(entry, pipe)) continue;
    std::string name;
    std::getline(std::ifstream(entry / "comm"), name);
    return name + " (pid " + pid + ")";
  }
  return {};
}

}  // namespace ddp::launcher
