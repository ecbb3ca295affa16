// A process that starts others as ddplaunch's programs do, to be killed by the tests.
//   process_host parent PROGRAM MODE          starts one worker with a death signal and waits
//   process_host keeper SERVE LEASE_MS JOB PROGRAM MODE…   run_keeper; the agent starts one worker. SERVE is
//     "serve": renews the lease every 20 ms until the keeper dies (7) or SIGTERM, SIGINT or SIGHUP comes (5),
//              and cleans up before it exits
//     "group": the same, with its worker in a control group, whose path goes to stdout
//     "silent": does not renew, and writes to stdout when its worker, in a control group, has ended
//     "exit": ends at once with code 3 and leaves its worker behind
//     "hang": the same, but hangs at its end; the keeper waits for its lease, or 300 ms without one
//     "deaf": serves, but SIGTERM ends it as it ends any program
//     "note": serves, but writes the number of a stop signal to stdout and goes on
//     "report": starts no worker. Reports the path of each line of stdin to the keeper, with an 'a' to
//               descriptor 3, and ends with code 3: "+PATH" is a control group, "-PATH" a dropped one, and
//               "/PATH" a directory
//     "report-nobody": the same, but keeper and agent have given up root
//     "foreign": ends with code 3 when it reads a byte. The worker is the keeper's child and stays root's,
//                while keeper and agent have given up root
// Workers get descriptor 3; the agent writes 'a' to it when it is ready.
#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/child_process.h"
#include "launcher/keeper/cgroup.h"
#include "launcher/keeper/keeper.h"
#include "launcher/keeper/process_tree.h"

extern char** environ;

namespace {

using namespace ddp;

Result<ChildProcess> start(char** words, int death_signal, const std::string& job,
                           const launcher::Cgroup* group = nullptr) {
  ChildSpec spec;
  spec.path = words[0];
  for (char** word = words; *word; ++word)
    spec.argv.emplace_back(*word);
  for (char** entry = environ; *entry; ++entry)
    spec.env.emplace_back(*entry);
  if (!job.empty()) {
    spec.env.push_back("DDPLAUNCH_JOB_ID=" + job);
    spec.env.push_back("LOCAL_RANK=0");
  }
  spec.inherit = {{3, 3}};
  spec.death_signal = death_signal;
  if (group) {
    spec.cgroup = group->directory();
    spec.cgroup_procs = group->procs();
  }
  auto child = spawn(spec);
  if (!child) std::fprintf(stderr, "%s\n", child.error().text.c_str());
  return child;
}

/// Starts a worker that nothing watches. spawn() makes a thread for that where there are no pidfds, and
/// run_keeper must be called before threads start.
bool start_unwatched(char** words, const char* job) {
  const pid_t worker = fork();
  if (worker == 0) {
    setsid();
    // The test reads the keeper's streams to their end, so this process must not hold them.
    const int nothing = open("/dev/null", O_RDWR);
    for (const int stream : {0, 1, 2})
      dup2(nothing, stream);
    close_descriptors(4, ~0U);
    setenv("DDPLAUNCH_JOB_ID", job, 1);
    setenv("LOCAL_RANK", "0", 1);
    execv(words[0], words);
    _exit(127);
  }
  return worker > 0;
}

int serve(launcher::KeeperSocket& link, const launcher::TreeScope& scope, const std::string& mode) {
  sigset_t term;
  sigemptyset(&term);
  for (const int number : {SIGTERM, SIGINT, SIGHUP})
    if (mode != "deaf") sigaddset(&term, number);
  sigprocmask(SIG_BLOCK, &term, nullptr);
  const UniqueFd signals(signalfd(-1, &term, SFD_CLOEXEC | SFD_NONBLOCK));
  if (write(3, "a", 1) != 1) return 9;
  for (;;) {
    link.renew();
    pollfd events[] = {{link.watch_fd(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    poll(events, 2, 20);
    if (events[0].revents == 0 && events[1].revents == 0) continue;
    signalfd_siginfo info;
    if (mode == "note" && read(signals.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      std::printf("%u\n", info.ssi_signo);
      std::fflush(stdout);
      continue;
    }
    if (!launcher::kill_own_tree(scope).empty()) return 6;
    if (scope.cgroup && !scope.cgroup->remove(std::chrono::seconds(5))) return 8;
    return events[0].revents != 0 ? 7 : 5;
  }
}

int report(launcher::KeeperSocket& link) {
  for (std::string line; std::getline(std::cin, line);) {
    if (line[0] == '+') link.set_cgroup(line.substr(1));
    if (line[0] == '-') link.drop_cgroup(line.substr(1));
    if (line[0] == '/') link.set_directory(line);
    if (write(3, "a", 1) != 1) return 9;
  }
  return 3;
}

int agent(launcher::KeeperSocket& link, char** argv) {
  alarm(60);  // an agent that a test forgets must not live forever
  const std::string mode = argv[2];
  const std::chrono::milliseconds lease(std::atoi(argv[3]));
  if (std::string_view(argv[3]).ends_with('z')) link.set_sleep_rule(launcher::SleepRule::kTree);
  if (std::string_view(argv[3]).ends_with('Z')) link.set_sleep_rule(launcher::SleepRule::kTreeAndMaster);
  const std::string job = argv[4];
  link.set_job_mark(job);
  char go;
  if (mode == "foreign") return read(0, &go, 1) == 1 ? 3 : 9;
  if (mode.starts_with("report")) return report(link);
  launcher::TreeScope scope;
  if (mode == "group" || mode == "silent") {
    auto group = launcher::Cgroup::make(launcher::own_cgroups(), job, 0);
    if (!group) return std::fprintf(stderr, "%s\n", group.error().text.c_str()), 9;
    scope.cgroup = std::make_shared<launcher::Cgroup>(std::move(*group));
    link.set_cgroup(scope.cgroup->path());
    std::printf("%s\n", scope.cgroup->path().c_str());
    std::fflush(stdout);
  }
  auto worker = start(argv + 5, 0, job, scope.cgroup.get());
  if (!worker) return 9;
  if (mode == "hang") {
    std::atexit([] {
      for (;;)
        pause();
    });
  }
  if (mode == "exit" || mode == "hang") {
    worker->abandon();
    // Wait until the worker is ready, so that the test knows what must be cleaned up.
    if (read(0, &go, 1) != 1) return 9;
    link.set_lease(lease);
    return 3;
  }
  link.set_lease(lease);
  if (mode == "silent") {
    if (write(3, "a", 1) != 1) return 9;
    pollfd ended{worker->end_fd(), POLLIN, 0};
    poll(&ended, 1, -1);
    std::printf("worker ended\n");
    std::fflush(stdout);
    pause();
  }
  return serve(link, scope, mode);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "parent" && argc > 3) {
    const auto worker = start(argv + 2, SIGKILL, {});
    for (;;)
      pause();
  }
  if (mode == "keeper" && argc > 6) {
    launcher::KeeperOptions options;
    options.exit_code_if_left = launcher::kExitProcessesLeft;
    options.end_time = std::chrono::milliseconds(300);
    const std::string_view serve_mode = argv[2];
    if (serve_mode == "foreign") {
      options.kill_bound = std::chrono::milliseconds(500);
      if (!start_unwatched(argv + 5, argv[4])) return 9;
    }
    if ((serve_mode == "foreign" || serve_mode == "report-nobody") && setresuid(65534, 65534, 65534) != 0)
      return 9;
    return launcher::run_keeper(options, [argv](launcher::KeeperSocket& link) { return agent(link, argv); });
  }
  return 2;
}
