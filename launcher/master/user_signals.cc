#include "launcher/master/user_signals.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "launcher/keeper/process_table.h"

namespace ddp::launcher {
namespace {

volatile std::sig_atomic_t settled_code = 0;
/// Set once, before `has_final_line`.
std::string final_line;
volatile std::sig_atomic_t has_final_line = 0;

/// Makes only async-signal-safe calls. It never waits, because stderr may have no reader.
void end_now(int) {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (has_final_line != 0 && ::poll(&room, 1, 0) == 1)
    (void)!::write(STDERR_FILENO, final_line.data(), final_line.size());
  ::_exit(settled_code);
}

sigset_t ending_signals() {
  sigset_t ending;
  ::sigemptyset(&ending);
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    ::sigaddset(&ending, number);
  return ending;
}

bool inherited_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void add_signals(asio::signal_set& set, std::initializer_list<int> numbers) {
  for (const int number : numbers) {
    if (!inherited_ignored(number)) set.add(number);
  }
}

bool can_be_continued() {
  pid_t parent = ::getppid();
  while (parent > 0 && ::getpgid(parent) == ::getpgrp()) {
    const auto process = read_process(parent);
    parent = process ? process->parent : 0;
  }
  return parent > 0 && ::getsid(parent) == ::getsid(0);
}

void end_at_signals_with(int code, std::string_view last_line) {
  settled_code = code;
  if (!last_line.empty()) {
    final_line = last_line;
    has_final_line = 1;
  }
  struct sigaction action {};
  action.sa_handler = end_now;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!inherited_ignored(number)) ::sigaction(number, &action, nullptr);
  }
  if (!inherited_ignored(SIGTSTP)) ::signal(SIGTSTP, SIG_DFL);
}

void take_back_signals(asio::signal_set& set) {
  const sigset_t ending = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  error_code ignored;
  set.clear(ignored);  // Asio installs its handler only for a signal that no set has
  add_signals(set, {SIGINT, SIGTERM, SIGHUP});
  ::pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
}

void keep_signals_waiting() {
  const sigset_t ending = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &ending, nullptr);
}

}  // namespace ddp::launcher
