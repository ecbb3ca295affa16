#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/ddplaunch/commands.h"
#include "apps/ddplaunch/logout.h"
#include "base/child_process.h"
#include "base/files.h"
#include "base/unique_fd.h"

namespace ddp {
namespace {

constexpr int kLookEveryMs = 50;
constexpr std::size_t kJournalBytes = 16u << 20;

volatile sig_atomic_t job_process = 0;

/// Ctrl-C during the start stops the start.
void pass_on(int signal) {
  ::kill(static_cast<pid_t>(job_process), signal);
}

/// Returns the journals that the job may write. One that exists belongs to an earlier run.
std::vector<std::string> new_journals(const launcher::JobSpec& spec) {
  std::vector<std::string> journals;
  for (const std::string& directory : {spec.job_dir, spec.fallback_job_dir}) {
    std::string path = directory + "/events.jsonl";
    if (!directory.empty() && ::access(path.c_str(), F_OK) != 0) journals.push_back(std::move(path));
  }
  return journals;
}

/// Returns whether all ranks have started. No text in a journal contains these quotes.
bool all_run(const std::vector<std::string>& journals) {
  for (const std::string& path : journals) {
    if (read_start(path, kJournalBytes, O_NONBLOCK).find("\"event\":\"attempt_running\"") !=
        std::string::npos)
      return true;
  }
  return false;
}

/// Makes this process independent of the terminal and of the shell. Its messages go to `errors`.
void leave_terminal(int errors) {
  ::setsid();
  ::signal(SIGHUP, SIG_IGN);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(null.get(), STDIN_FILENO);
  ::dup2(null.get(), STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
}

/// Copies what there is to standard error. Returns false at the end of the pipe.
bool copy_errors(int pipe) {
  char part[4096];
  const ssize_t count = ::read(pipe, part, sizeof part);
  if (count > 0) (void)!::write(STDERR_FILENO, part, static_cast<std::size_t>(count));
  return count > 0;
}

/// Shows the messages of the start, and returns when all ranks run or the job has ended.
int follow_start(const RunJob& job, pid_t child, int errors, const std::vector<std::string>& journals) {
  job_process = child;
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    ::signal(number, pass_on);
  pollfd readable{errors, POLLIN, 0};
  bool running = false;
  int status = 0;
  bool ended = false;
  while (!running && !ended) {
    if (::poll(&readable, 1, kLookEveryMs) > 0 && !copy_errors(errors)) readable.fd = -1;
    ended = ::waitpid(child, &status, WNOHANG) == child;
    running = all_run(journals);
  }
  while (ended && readable.fd >= 0 && copy_errors(errors)) {
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

int run_detached(const RunJob& job, const std::function<int()>& run) {
  const std::vector<std::string> journals = new_journals(job.spec);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return report_exit(system_error(errno, "pipe"));
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return report_exit(system_error(errno, "fork"));
  if (child == 0) {
    leave_terminal(write_end.get());
    write_end.reset();
    // The end of a job's name is unique, and has no characters that systemd would refuse.
    const std::string& name = job.registration.name;
    const std::string warning = survive_logout("ddplaunch-" + name.substr(name.rfind('.') + 1));
    if (!warning.empty() && !job.spec.quiet)
      std::fprintf(stderr, "ddplaunch: warning: %s\n", warning.c_str());
    return run();
  }
  write_end.reset();
  return follow_start(job, child, read_end.get(), journals);
}

}  // namespace ddp
