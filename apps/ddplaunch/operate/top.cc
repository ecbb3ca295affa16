#include "apps/ddplaunch/operate/top.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>

#include "apps/ddplaunch/operate/job_files.h"
#include "base/unique_fd.h"
#include "launcher/lines/output_lines.h"
#include "launcher/output/console.h"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kRedraw{1};
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};
// The Linux console has no second screen. There the picture is erased instead.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[2J\x1b[H\x1b[?25l";
constexpr std::string_view kLeave = "\x1b[2J\x1b[H\x1b[?25h\x1b[?1049l";

/// The terminal in the state of a full-screen program: another screen, no cursor, keys without Enter, signals
/// as events. The destructor gives all of it back. One thread.
class FullScreen {
 public:
  FullScreen() : keys_(::isatty(STDIN_FILENO) == 1) {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int number : kSignals)
      sigaddset(&wanted, number);
    wanted_ = wanted;
    signals_ = UniqueFd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    enter();
  }
  ~FullScreen() { leave(); }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  bool has_keys() const { return keys_; }

  /// `picture`: on the other screen; else only the keys are taken.
  void enter(bool picture = true) {
    if (std::exchange(entered_, true)) return;
    picture_ = picture;
    ::pthread_sigmask(SIG_BLOCK, &wanted_, &mask_);
    if (keys_ && ::tcgetattr(STDIN_FILENO, &cooked_) == 0) {
      termios raw = cooked_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C and Ctrl-Z stay signals
      raw.c_cc[VMIN] = 1;
      raw.c_cc[VTIME] = 0;
      ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    if (picture_) print(kEnter);
  }

  /// Signals act as usual from here on, so the terminal is given back first.
  void leave() {
    if (!std::exchange(entered_, false)) return;
    if (picture_) print(kLeave);
    if (keys_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &cooked_);
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }

  /// Waits for keys or a signal, at most until `due`. Returns the keys' bytes. A signal that ends the process
  /// does not return. `open` becomes false when no more keys can come.
  std::string wait(Clock::time_point due, bool& open) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
    std::array<pollfd, 2> look{{{signals_.get(), POLLIN, 0}, {keys_ && open ? STDIN_FILENO : -1, POLLIN, 0}}};
    if (::poll(look.data(), look.size(), left > 0 ? static_cast<int>(left) : 0) <= 0) return {};
    if (look[0].revents != 0) take_signal();
    if (look[1].revents == 0) return {};
    std::array<char, 64> bytes{};
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    open = count > 0;
    return open ? std::string(bytes.data(), static_cast<std::size_t>(count)) : "";
  }

 private:
  void take_signal() {
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof info) != sizeof info) return;
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGWINCH) return;  // the next picture has the new size
    leave();
    // As if it had never been blocked: the shell sees which signal ended or stopped the program.
    ::raise(number == SIGTSTP ? SIGSTOP : number);
    enter(picture_);  // continued
  }

  const bool keys_;
  bool entered_ = false;
  bool picture_ = false;
  sigset_t wanted_{};
  sigset_t mask_{};
  termios cooked_{};
  UniqueFd signals_;
};

void draw(const TopView& view, bool keys) {
  std::string bytes = "\x1b[H";
  const auto rows = view.rows(launcher::terminal_size(STDOUT_FILENO), keys);
  for (std::size_t i = 0; i < rows.size(); ++i)
    bytes += rows[i] + "\x1b[K" + (i + 1 < rows.size() ? "\r\n" : "");
  print(bytes + "\x1b[J");
}

/// Shows what `show` prints on the usual screen until a key comes.
void show_aside(FullScreen& screen, const std::function<void()>& show, bool& open) {
  screen.leave();
  show();
  print("-- press a key to go back --");
  screen.enter(false);
  while (open && screen.wait(Clock::now() + kRedraw, open).empty()) {
  }
  print("\n");
  screen.leave();
  screen.enter();
}

}  // namespace

bool show_top(const TopJob& job) {
  TopView view(launcher::colours_wanted(true, std::getenv("NO_COLOR"), std::getenv("TERM")));
  FullScreen screen;
  bool open = true;
  for (auto due = Clock::now(); job.runs();) {
    if (Clock::now() >= due) {
      due = Clock::now() + kRedraw;
      Error error{};
      auto status = job.status(error);
      view.set_note(status.is_null() ? error.text : "");
      if (!status.is_null()) view.set_status(std::move(status));
    }
    draw(view, screen.has_keys());
    for (const TopKey& key : read_keys(screen.wait(due, open))) {
      switch (view.on_key(key.key, key.letter)) {
        case TopView::Wish::kNothing:
          break;
        case TopView::Wish::kQuit:
          return false;
        case TopView::Wish::kOutput:
          show_aside(
              screen, [&] { job.print_output(view.rank(), launcher::terminal_size(STDOUT_FILENO).rows); },
              open);
          break;
        case TopView::Wish::kStacks:
          show_aside(
              screen, [&] { job.print_stacks(view.rank()); }, open);
          break;
        case TopView::Wish::kStop:
          if (const auto stopped = job.stop(); !stopped) view.set_note(stopped.error().text);
          break;
      }
    }
    if (!open) return false;  // the terminal is gone
  }
  return true;
}

}  // namespace ddp
