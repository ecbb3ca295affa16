// A worker that is hard to end, for tests/cli/torture_test.py and tests/bench/failure.
//
//   unruly_worker DIR KINDS [RANK HOW AFTER_MS]
//
// KINDS is one kind, or one for each rank separated by commas (in turn). A kind is words joined by '+':
//   plain    sleeps
//   stubborn ignores TERM, INT and HUP, as do the processes below it
//   slow     exits 7 a little after a TERM
//   child    has a child in its process group
//   session  has a grandchild in a session of its own
//   pipes    the grandchildren keep its stdout and stderr open (else they use /dev/null)
//   daemon   leaves a daemon: forked twice, own session, executed with an empty environment, nothing open
//   storm    two chains of processes that fork and end all the time, for 20 s at most
//   stopped  has a child that was stopped, and stops itself
//
// RANK HOW AFTER_MS ends the rank RANK this long after it was up. HOW is exit:N or signal:N. SIGUSR1 makes
// any rank exit 21 + rank % 40. Each process ends after 90 s at most.
//
// The file "events" in DIR gets a line "up RANK PID NANOSECONDS" (CLOCK_MONOTONIC) when all processes of a
// rank run. It gets "died RANK PID NANOSECONDS" just before a planned end. The leader holds the FIFO
// "leaders" open, and all processes but the daemon hold "all" open, if these FIFOs exist with a reader. End
// of file means that the last holder has ended.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr unsigned kLifetime = 90;
constexpr timespec kHop{0, 5'000'000};
constexpr int kHops = 4000;

int g_exit_code = 21;

long long now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

/// The rank is in the launchers' own variables; for pdsh, clush and plain ssh it follows from the node's
/// address.
int my_rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  if (const char* connection = std::getenv("SSH_CONNECTION")) {
    int third = 0;
    int fourth = 0;
    if (std::sscanf(connection, "%*s %*s 127.0.%d.%d", &third, &fourth) == 2) return third * 250 + fourth - 2;
  }
  return 0;
}

void write_event(const std::string& dir, const char* event, int rank) {
  const int fd = open((dir + "/events").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  char line[128];
  const int size = std::snprintf(line, sizeof line, "%s %d %d %lld\n", event, rank, getpid(), now_ns());
  if (fd < 0 || write(fd, line, static_cast<std::size_t>(size)) != size) _exit(9);
  close(fd);
}

[[noreturn]] void rest() {
  alarm(kLifetime);
  for (;;)
    pause();
}

[[noreturn]] void hop() {
  for (int i = 0; i < kHops; ++i) {
    if (fork() > 0) _exit(0);
    nanosleep(&kHop, nullptr);
  }
  _exit(0);
}

void give_up_output() {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {0, 1, 2})
    dup2(null, fd);
}

/// Returns when the daemon has been executed.
void leave_a_daemon(const std::string& dir) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) _exit(9);
  const pid_t middle = fork();
  if (middle == 0) {
    setsid();
    if (fork() == 0) {
      close_range(0, static_cast<unsigned>(ends[1]) - 1, 0);
      close_range(static_cast<unsigned>(ends[1]) + 1, ~0U, 0);
      const char* const argv[] = {"unruly_daemon", dir.c_str(), "daemon!", nullptr};
      char* const none[] = {nullptr};
      execve("/proc/self/exe", const_cast<char* const*>(argv), none);
      _exit(9);
    }
    _exit(0);
  }
  waitpid(middle, nullptr, 0);
  close(ends[1]);
  char byte;
  while (read(ends[0], &byte, 1) > 0) {
  }
  close(ends[0]);
}

std::string kind_of(const std::string& kinds, int rank) {
  std::size_t count = 1;
  for (const char letter : kinds)
    count += letter == ',';
  std::size_t begin = 0;
  for (std::size_t skip = static_cast<std::size_t>(rank) % count; skip > 0; --skip)
    begin = kinds.find(',', begin) + 1;
  return kinds.substr(begin, std::min(kinds.find(',', begin), kinds.size()) - begin);
}

void ignore_polite_signals() {
  for (const int number : {SIGTERM, SIGINT, SIGHUP})
    signal(number, SIG_IGN);
}

void start_family(const std::string& dir, const std::string& kind, int leaders) {
  const auto has = [&kind](const char* word) { return ("+" + kind + "+").find(word) != std::string::npos; };
  const bool keep_pipes = has("+pipes+");
  const auto begin = [leaders, keep_pipes](const char* name) {
    prctl(PR_SET_NAME, name);
    if (leaders >= 0) close(leaders);
    if (!keep_pipes) give_up_output();
  };
  if (has("+child+") && fork() == 0) {
    begin("unruly_child");
    rest();
  }
  if (has("+session+") && fork() == 0) {
    begin("unruly_session");
    setsid();
    rest();
  }
  if (has("+daemon+")) leave_a_daemon(dir);
  if (has("+stopped+")) {
    const pid_t child = fork();
    if (child == 0) {
      begin("unruly_stopped");
      raise(SIGSTOP);
      rest();
    }
    waitpid(child, nullptr, WUNTRACED);
  }
  for (int chain = 0; has("+storm+") && chain < 2; ++chain) {
    if (fork() == 0) {
      begin("unruly_storm");
      setsid();
      hop();
    }
  }
}

void end_as_planned(const std::string& dir, int rank, const std::string& how, long after_ms) {
  const timespec delay{after_ms / 1000, after_ms % 1000 * 1'000'000};
  nanosleep(&delay, nullptr);
  write_event(dir, "died", rank);
  const int number = std::atoi(how.substr(how.find(':') + 1).c_str());
  if (how.rfind("exit:", 0) == 0) _exit(number);
  raise(number);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc == 4 || argc == 5) return 2;
  const std::string dir = argv[1];
  if (std::strcmp(argv[2], "daemon!") == 0) {
    prctl(PR_SET_NAME, "unruly_daemon");
    ignore_polite_signals();
    rest();
  }
  const int rank = my_rank();
  const std::string kind = kind_of(argv[2], rank);
  g_exit_code = 21 + rank % 40;
  signal(SIGUSR1, [](int) { _exit(g_exit_code); });
  if (kind.find("stubborn") != std::string::npos) ignore_polite_signals();
  if (kind.find("slow") != std::string::npos) {
    signal(SIGTERM, [](int) {
      const timespec while_saving{0, 150'000'000};
      nanosleep(&while_saving, nullptr);
      _exit(7);
    });
  }
  [[maybe_unused]] const int all = open((dir + "/all").c_str(), O_WRONLY | O_NONBLOCK);
  const int leaders = open((dir + "/leaders").c_str(), O_WRONLY | O_NONBLOCK);
  start_family(dir, kind, leaders);
  write_event(dir, "up", rank);
  if (argc > 5 && rank == std::atoi(argv[3])) end_as_planned(dir, rank, argv[4], std::atol(argv[5]));
  if (kind.find("stopped") != std::string::npos) raise(SIGSTOP);
  rest();
}
