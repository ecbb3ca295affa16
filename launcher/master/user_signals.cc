#include "launcher/user_signals.h"

#include <unistd.h>

#include <csignal>

namespace ddp::launcher {
namespace {

volatile std::sig_atomic_t settled_code = 0;

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

void end_at_signals_with(int code) {
  settled_code = code;
  struct sigaction action {};
  action.sa_handler = [](int) { ::_exit(settled_code); };
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!inherited_ignored(number)) ::sigaction(number, &action, nullptr);
  }
  if (!inherited_ignored(SIGTSTP)) ::signal(SIGTSTP, SIG_DFL);
}

void keep_signals_waiting() {
  sigset_t ending;
  ::sigemptyset(&ending);
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    ::sigaddset(&ending, number);
  ::pthread_sigmask(SIG_BLOCK, &ending, nullptr);
}

}  // namespace ddp::launcher
