// Measures the time to start programs and wait for their ends, with ddp::spawn, posix_spawn and fork.
//
// spawn_bench [COUNT [BALLAST_MIB]]
//   Starts /bin/true COUNT times (default 512) in a process that uses BALLAST_MIB of memory (default 256).
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/child_process.h"

extern char** environ;

namespace {

using Clock = std::chrono::steady_clock;
char* const kArgv[] = {const_cast<char*>("true"), nullptr};

double seconds(const std::function<void()>& body) {
  const auto began = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

void by_spawn(int count, bool new_session) {
  ddp::ChildSpec spec;
  spec.path = "/bin/true";
  spec.argv = {"true"};
  for (char** entry = environ; *entry; ++entry)
    spec.env.emplace_back(*entry);
  spec.death_signal = SIGKILL;
  spec.new_session = new_session;
  std::vector<ddp::ChildProcess> children;
  for (int i = 0; i < count; ++i) {
    auto child = ddp::spawn(spec);
    if (!child) std::exit((std::fprintf(stderr, "%s\n", child.error().text.c_str()), 1));
    children.push_back(std::move(*child));
  }
  for (ddp::ChildProcess& child : children) {
    pollfd ended{child.end_fd(), POLLIN, 0};
    poll(&ended, 1, -1);
    if (!child.try_wait()->success()) std::exit(1);
  }
}

void wait_for_all(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0) std::exit(1);
  }
}

void by_posix_spawn(int count, short flags) {
  std::vector<pid_t> pids(static_cast<std::size_t>(count));
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, flags);
  for (pid_t& pid : pids) {
    if (posix_spawn(&pid, "/bin/true", nullptr, &attributes, kArgv, environ) != 0) std::exit(1);
  }
  posix_spawnattr_destroy(&attributes);
  wait_for_all(pids);
}

void by_fork(int count) {
  std::vector<pid_t> pids(static_cast<std::size_t>(count));
  for (pid_t& pid : pids) {
    pid = fork();
    if (pid == 0) {
      execve("/bin/true", kArgv, environ);
      _exit(127);
    }
  }
  wait_for_all(pids);
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 512;
  const std::size_t ballast_mib = argc > 2 ? static_cast<std::size_t>(std::atoi(argv[2])) : 256;
  const std::vector<char> ballast(ballast_mib << 20, 'x');
  // A new session costs the kernel a scheduling group (autogroup), so both variants are measured.
  struct SpawnMethod {
    const char* name;
    std::function<void()> run;
    double best = 1e9;
  };
  SpawnMethod methods[] = {
      {"spawn, own session", [count] { by_spawn(count, true); }},
      {"posix_spawn, own session", [count] { by_posix_spawn(count, POSIX_SPAWN_SETSID); }},
      {"spawn", [count] { by_spawn(count, false); }},
      {"posix_spawn", [count] { by_posix_spawn(count, 0); }},
      {"fork", [count] { by_fork(count); }},
  };
  // Other work on the machine only adds time, so the minimum of five rounds counts.
  for (int round = 0; round < 5; ++round) {
    for (SpawnMethod& method : methods)
      method.best = std::min(method.best, seconds(method.run));
  }
  std::printf("%d x /bin/true, %zu MiB in use, best of 5\n", count, ballast.size() >> 20);
  for (const SpawnMethod& method : methods)
    std::printf("  %-26s %8.1f ms\n", method.name, method.best * 1e3);
  return 0;
}
