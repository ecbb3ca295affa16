// The processes that the process tests start and must end. Each process that is ready writes one byte to
// descriptor 3. Descriptor 3 reaches its end of file when all of them are gone.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <initializer_list>

#include "tests/process/stuck_exec.h"

namespace {

void ready() {
  // A process that a test forgets must not live forever.
  alarm(60);
  if (write(3, "r", 1) != 1) _exit(9);
}

[[noreturn]] void rest() {
  ready();
  for (;;)
    pause();
}

void ignore_polite_signals() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP})
    signal(number, SIG_IGN);
}

/// Ignores TERM, and has a child, a child in its own session, a daemon (double fork), and a stopped child: 5
/// processes.
[[noreturn]] void family() {
  ignore_polite_signals();
  if (fork() == 0) rest();
  if (fork() == 0) {
    setsid();
    rest();
  }
  const pid_t middle = fork();
  if (middle == 0) {
    setsid();
    if (fork() == 0) rest();
    _exit(0);
  }
  waitpid(middle, nullptr, 0);
  const pid_t stopped = fork();
  if (stopped == 0) {
    alarm(60);
    raise(SIGSTOP);
    rest();
  }
  waitpid(stopped, nullptr, WUNTRACED);
  ready();  // on behalf of the stopped child
  rest();
}

/// Ignores TERM, and has a typical daemon: two forks, its own session, no standard streams, and a new program
/// with an empty environment. 2 processes.
[[noreturn]] void daemon_maker(const char* self) {
  ignore_polite_signals();
  const pid_t middle = fork();
  if (middle == 0) {
    setsid();
    if (fork() > 0) _exit(0);
    for (const int fd : {0, 1, 2})
      close(fd);
    char name[] = "d", mode[] = "stubborn";
    char* const words[] = {name, mode, nullptr};
    char* const nothing[] = {nullptr};
    execve(self, words, nothing);
    _exit(9);
  }
  waitpid(middle, nullptr, 0);
  rest();
}

/// Ignores TERM, and has a child that has become another user (as below sudo), and a zombie: 2 live
/// processes. Needs root.
[[noreturn]] void changed_user() {
  ignore_polite_signals();
  if (fork() == 0) {
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) _exit(9);
    rest();
  }
  const pid_t zombie = fork();
  if (zombie == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(zombie), &info, WEXITED | WNOWAIT);
  rest();
}

/// Every process forks as long as the total is below `limit`, each child in its own session, so that the set
/// of processes keeps changing.
[[noreturn]] void storm(int limit) {
  auto* count = static_cast<std::atomic<int>*>(
      mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ready();
  while (count->fetch_add(1) < limit) {
    if (fork() == 0) {
      ready();
      setsid();
    } else {
      usleep(1500);
    }
  }
  for (;;)
    pause();
}

/// Forks and ends all the time, so that no process lives long, for at most 20 s.
[[noreturn]] void hop() {
  ready();
  const time_t end = time(nullptr) + 20;
  while (time(nullptr) < end) {
    if (fork() > 0) _exit(0);
  }
  _exit(0);
}

/// Leaves a process in its session and one in another session, and exits. `stuck` also leaves one whose
/// environment nobody can read.
[[noreturn]] void leave(bool stuck) {
  if (fork() == 0) rest();
  if (fork() == 0) {
    setsid();
    rest();
  }
  if (stuck && fork() == 0) {
    setsid();
    exec_stuck("/proc/self/exe", "rest");
  }
  _exit(0);
}

/// Executes itself for ever. It is ready once.
[[noreturn]] void exec_again(const char* mode) {
  if (strcmp(mode, "exec") == 0) ready();
  char name[] = "worker", again[] = "exec-again";
  char* argv[] = {name, again, nullptr};
  execve("/proc/self/exe", argv, environ);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "rest") == 0) rest();
  if (strcmp(mode, "stubborn") == 0) {
    ignore_polite_signals();
    rest();
  }
  if (strncmp(mode, "exec", 4) == 0) exec_again(mode);
  if (strcmp(mode, "family") == 0) family();
  if (strcmp(mode, "storm") == 0 && argc > 2) storm(atoi(argv[2]));
  if (strcmp(mode, "hop") == 0) hop();
  if (strcmp(mode, "daemon") == 0) daemon_maker("/proc/self/exe");
  if (strcmp(mode, "user") == 0) changed_user();
  if (strncmp(mode, "leave", 5) == 0) leave(strcmp(mode, "leave-stuck") == 0);
  if (strcmp(mode, "stuck") == 0) exec_stuck("/proc/self/exe", "rest");
  if (strcmp(mode, "orphan") == 0) {  // leaves one process behind and ends
    if (fork() == 0) rest();
    return 0;
  }
  if (strcmp(mode, "kill") == 0 && argc > 2) {
    raise(atoi(argv[2]));
    pause();
  }
  return argc > 2 ? atoi(argv[2]) : 0;
}
