#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "apps/ddplaunch/commands.h"
#include "base/asio.h"
#include "base/blocking_calls.h"
#include "base/child_process.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace ddp {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kAnswerTime{2};
constexpr std::chrono::milliseconds kLookEvery{10};
constexpr std::size_t kMostText = 4096;
constexpr std::string_view kEndsJob = "logind ends this job at the logout (KillUserProcesses=yes)";

/// Asks a service on D-Bus through busctl, a program of systemd.
ToolOutput ask_busctl(std::vector<std::string> words) {
  words.insert(words.begin(), "busctl");
  auto child = own_child(std::move(words));
  return child ? wait_for_tool(std::move(*child), Clock::now() + kAnswerTime, kMostText) : ToolOutput{};
}

bool logind_kills() {
  const std::string answer =
      ask_busctl({"get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
                  "org.freedesktop.login1.Manager", "KillUserProcesses", "KillExcludeUsers"})
          .text;
  const char* const user = std::getenv("USER");
  const bool excluded = user != nullptr && answer.find('"' + std::string(user) + '"') != std::string::npos;
  return answer.starts_with("b true") && !excluded;
}

/// The service manager of a user who does not linger ends with the last login, and all its scopes with it.
bool user_lingers() {
  return ask_busctl({"get-property", "org.freedesktop.login1",
                     "/org/freedesktop/login1/user/_" + std::to_string(::geteuid()),
                     "org.freedesktop.login1.User", "Linger"})
      .text.starts_with("b true");
}

/// Makes this process survive the user's logout where logind ends processes then (KillUserProcesses=yes in
/// logind.conf): moves it into a scope NAME of the user's service manager, which stays if the user lingers.
/// Returns why the process will not survive, for the user; empty: it will. Takes a few seconds at most. Call
/// it before any thread or child starts.
std::string survive_logout(const std::string& name) {
  if (!logind_kills()) return "";
  const std::string ends(kEndsJob);
  if (!user_lingers()) return ends + "; run loginctl enable-linger before the job";
  const std::string scope = name + ".scope";
  const ToolOutput made =
      ask_busctl({"--user", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
                  "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))", scope, "fail",
                  "1", "PIDs", "au", "1", std::to_string(::getpid()), "0"});
  if (!made.success())
    return ends + "; systemd made no scope for it: " + one_line(made.text + made.trouble());
  // Children that start earlier would stay in the session.
  const auto give_up = Clock::now() + kAnswerTime;
  while (read_start("/proc/self/cgroup", kMostText, 0).find('/' + scope) == std::string::npos) {
    if (Clock::now() > give_up) return ends + "; systemd did not move it into the scope " + scope;
    std::this_thread::sleep_for(kLookEvery);
  }
  return "";
}

constexpr int kCheckEveryMs = 50;

volatile sig_atomic_t job_process = 0;

/// Ctrl-C during the start stops the start.
void pass_on(int signal) {
  ::kill(static_cast<pid_t>(job_process), signal);
}

/// Adds the descriptor that an option names as a file, such as /dev/fd/63 of `--report >(jq .)`.
void add_named_descriptor(std::string_view path, std::vector<unsigned>& kept) {
  for (const std::string_view directory : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(directory)) continue;
    path.remove_prefix(directory.size());
    const int number = leading_number<int>(path).value_or(0);
    if (number > STDERR_FILENO) kept.push_back(static_cast<unsigned>(number));
  }
}

/// Closes all from 3 up that the job does not need: a lock or a pipe of the caller must not last as long as
/// the job.
void close_callers_descriptors(const launcher::JobSpec& spec, int needed) {
  std::vector<unsigned> kept = {STDERR_FILENO, static_cast<unsigned>(needed)};
  // The other files that options name were read before.
  for (const std::string& path : {spec.report_path, spec.ssh_config, spec.token_file})
    add_named_descriptor(path, kept);
  std::sort(kept.begin(), kept.end());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const unsigned last = i + 1 < kept.size() ? kept[i + 1] - 1 : ~0U;
    close_descriptors(kept[i] + 1, last);
  }
}

/// Copies what there is to standard error. Returns false at the end of the pipe.
bool copy_errors(int pipe) {
  char part[4096];
  const ssize_t count = ::read(pipe, part, sizeof part);
  if (count > 0) (void)!::write(STDERR_FILENO, part, static_cast<std::size_t>(count));
  return count > 0;
}

/// Shows the messages of the start, and returns when all ranks run or the job has ended.
/// `all_run` becomes readable when they do, and when the job has ended.
int follow_start(const RunJob& job, pid_t child, int errors, int all_run) {
  job_process = child;
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    ::signal(number, pass_on);
  pollfd readable[] = {{errors, POLLIN, 0}, {all_run, POLLIN, 0}};
  bool running = false;
  int status = 0;
  bool ended = false;
  while (!running && !ended) {
    (void)::poll(readable, 2, kCheckEveryMs);
    if (readable[0].revents != 0 && !copy_errors(errors)) readable[0].fd = -1;
    if (readable[1].revents != 0) {
      char byte = 0;
      running = ::read(all_run, &byte, 1) == 1;
      readable[1].fd = -1;
    }
    ended = ::waitpid(child, &status, WNOHANG) == child;
  }
  while (ended && readable[0].fd >= 0 && copy_errors(errors)) {
  }
  if (!running) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::printf("%s\n", job.spec.job_id.c_str());
  std::fflush(stdout);
  if (!job.spec.quiet && !ended) {
    std::fprintf(stderr, "ddplaunch: job %s runs; ddplaunch logs -f %s shows its output\n",
                 job.spec.job_id.c_str(), job.spec.job_id.c_str());
  }
  return 0;
}

}  // namespace

int run_detached(const RunJob& job, const std::function<int(std::function<void()> all_run)>& run) {
  auto errors = make_pipe("pipe"), all_run = make_pipe("pipe");
  if (!errors || !all_run) return report_exit((errors ? all_run : errors).error());
  auto& [read_end, write_end] = *errors;
  auto& [run_read_end, run_write_end] = *all_run;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return report_exit(system_error(errno, "fork"));
  if (child == 0) {
    leave_terminal(write_end.get());
    write_end.reset();
    read_end.reset();  // otherwise a write to stderr would wait for ever once the parent has ended
    run_read_end.reset();
    close_callers_descriptors(job.spec, run_write_end.get());
    // The end of a job's name is unique, and has no characters that systemd would refuse.
    const std::string& name = job.registration.name;
    const std::string warning = survive_logout("ddplaunch-" + name.substr(name.rfind('.') + 1));
    if (!warning.empty() && !job.spec.quiet)
      std::fprintf(stderr, "ddplaunch: warning: %s\n", warning.c_str());
    return run([fd = run_write_end.get()] { (void)!::write(fd, "r", 1); });
  }
  write_end.reset();
  run_write_end.reset();
  return follow_start(job, child, read_end.get(), run_read_end.get());
}

}  // namespace ddp
