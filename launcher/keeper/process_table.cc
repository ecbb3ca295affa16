// A process by a descriptor (a pidfd, or its directory below /proc); the texts of /proc; processes and users
// for messages; all processes; environments.
#include "launcher/keeper/process_table.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <memory>
#include <sstream>

#include "base/child_process.h"
#include "base/files.h"
#include "base/text.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// Reads the state from `directory`, which is a /proc/PID, as in proc(5). 0: the process was reaped.
char state_of(int directory) {
  const UniqueFd file(openat(directory, "status", O_RDONLY | O_CLOEXEC));
  if (!file) {
    // Without a free descriptor the state is not known, but whether the process is there.
    struct stat unused {};
    return fstatat(directory, "status", &unused, 0) != 0 && (errno == ENOENT || errno == ESRCH) ? '\0' : '?';
  }
  char buffer[256];  // the state is the third line, behind a name of at most 64 bytes
  const ssize_t size = read(file.get(), buffer, sizeof buffer);
  if (size < 0) return errno == ESRCH ? '\0' : '?';
  constexpr std::string_view kKey = "\nState:\t";
  const std::string_view text(buffer, static_cast<std::size_t>(size));
  const std::size_t at = text.find(kKey);
  return at < text.size() - kKey.size() ? text[at + kKey.size()] : '?';
}

/// Returns whether a thread group whose leader is a zombie has further threads.
bool has_other_threads(int directory) {
  struct stat tasks {};
  return fstatat(directory, "task", &tasks, 0) == 0 && tasks.st_nlink > 3;  // ".", ".." and the leader
}

}  // namespace

UniqueFd open_process(pid_t pid) {
  if (has_pidfds()) return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0U)));
  char path[32] = "/proc/";
  *std::to_chars(path + 6, path + sizeof path - 1, pid).ptr = '\0';
  UniqueFd directory(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // As pidfd_open says it, so that callers read one error.
  if (!directory && errno == ENOENT) errno = ESRCH;
  return directory;
}

bool has_ended(int fd) {
  if (has_pidfds()) {
    pollfd end{fd, POLLIN, 0};
    return poll(&end, 1, 0) == 1 && (end.revents & POLLIN) != 0;
  }
  const char state = state_of(fd);
  return state == '\0' ||
         (std::string_view("ZX").find(state) != std::string_view::npos && !has_other_threads(fd));
}

void wait_for_end(int fd, std::chrono::milliseconds limit) {
  if (has_pidfds()) {
    pollfd end{fd, POLLIN, 0};
    poll(&end, 1, static_cast<int>(limit.count()));
    return;
  }
  const auto until = Clock::now() + limit;
  while (!has_ended(fd) && Clock::now() < until)
    poll(nullptr, 0, 1);
}

int signal_process(int fd, pid_t pid, int number) {
  if (has_pidfds()) return syscall(SYS_pidfd_send_signal, fd, number, nullptr, 0U) == 0 ? 0 : errno;
  // An accepted race: the pid may be reused between this check and the signal, which needs a whole round of
  // pids within microseconds. Only a pidfd excludes it.
  if (has_ended(fd)) return ESRCH;
  return kill(pid, number) == 0 ? 0 : errno;
}

namespace {

std::string read_proc(pid_t pid, const char* name, std::size_t limit) {
  return read_start("/proc/" + std::to_string(pid) + "/" + name, limit);
}

/// Takes the next word from `text` as a number.
template <class T>
bool read_number(std::string_view& text, T& value) {
  const std::size_t from = text.find_first_not_of(" \t");
  if (from == std::string_view::npos) return false;
  text.remove_prefix(from);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

/// Returns the text behind `name` in its line; empty if no line starts with `name`.
std::string_view field(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(name)) return line.substr(name.size());
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return {};
}

std::string_view take_entry(std::string_view& environment) {
  const std::string_view entry = environment.substr(0, environment.find('\0'));
  environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
  return entry;
}

/// Flags of a task whose end has begun (include/linux/sched.h), which everybody may read: PF_EXITING,
/// PF_POSTCOREDUMP, PF_DUMPCORE, PF_SIGNALED. A program that dumps its core gets PF_EXITING only when the
/// core is written.
constexpr std::int64_t kEndingFlags = 0x4 | 0x8 | 0x200 | 0x400;

/// For a stopped process, the kernel puts the stop signal into the field of the exit signal.
bool is_stop_signal(std::int64_t signal) {
  return signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
}

/// Returns whether a signal is in a set of a status file.
bool is_pending(std::string_view status, std::string_view set, int number) {
  std::uint64_t bits = 0;
  const std::string_view text = field(status, set);
  std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  return (bits >> (number - 1) & 1) != 0;
}

}  // namespace

std::optional<ProcessStat> parse_stat(std::string_view text) {
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (close == std::string_view::npos || close < open || text.size() < close + 4) return std::nullopt;
  ProcessStat info;
  std::string_view head = text.substr(0, open);
  if (!read_number(head, info.pid)) return std::nullopt;
  info.comm = text.substr(open + 1, close - open - 1);
  info.state = text[close + 2];
  std::string_view rest = text.substr(close + 3);
  // Fields 4 (ppid) to 52 (exit_code). Only 9 (flags), 14 to 17 (utime, stime, cutime, cstime), 22 and 52 are
  // used. The exit code is that of the whole process, set before its first thread sees its end, but hidden
  // from readers without rights.
  for (int field = 4; field <= 52; ++field) {
    std::int64_t value = 0;
    std::uint64_t wide = 0;
    std::string_view again = rest;
    // Field 25 (rsslim) is unsigned and may not fit.
    if (!read_number(rest, value)) {
      rest = again;
      if (!read_number(rest, wide)) return field > 22 ? std::optional(info) : std::nullopt;
    }
    if (field >= 14 && field <= 17 && value > 0) info.cpu += static_cast<std::uint64_t>(value);
    if (field == 15) info.own_cpu = info.cpu;
    if (field == 22) info.started = static_cast<std::uint64_t>(value);
    if (field == 9) info.ending = (value & kEndingFlags) != 0;
    // While a tracer holds the process, the field has the reason for that.
    if (field == 52 && value != 0 && !is_stop_signal(value) && info.state != 't') info.ending = true;
  }
  return info;
}

std::optional<ProcessStat> read_stat(pid_t pid) {
  return parse_stat(read_proc(pid, "stat", 4096));
}

std::optional<ProcessInfo> parse_status(std::string_view text) {
  ProcessInfo info;
  uid_t real = 0;
  std::string_view name = field(text, "Name:\t");
  std::string_view state = field(text, "State:\t");
  std::string_view pid = field(text, "Pid:\t");
  std::string_view parent = field(text, "PPid:\t");
  std::string_view uids = field(text, "Uid:\t");
  if (state.empty() || !read_number(pid, info.pid) || !read_number(parent, info.parent) ||
      !read_number(uids, real) || !read_number(uids, info.uid))
    return std::nullopt;
  info.comm = name;
  info.state = state[0];
  info.stops =
      info.state == 'D' && (is_pending(text, "ShdPnd:\t", SIGSTOP) || is_pending(text, "SigPnd:\t", SIGSTOP));
  return info;
}

std::optional<ProcessInfo> read_process(pid_t pid) {
  return parse_status(read_proc(pid, "status", 8192));
}

namespace {

/// Names of directory services are unknown: asking for them may take long.
std::string user_text(uid_t uid) {
  constexpr std::size_t kPasswdBytes = 1u << 20;
  std::istringstream users(read_start("/etc/passwd", kPasswdBytes, O_CLOEXEC));
  const std::string field = ":" + std::to_string(uid) + ":";
  for (std::string line; std::getline(users, line);) {
    const std::size_t name = line.find(':');
    const std::size_t password = name == std::string::npos ? name : line.find(':', name + 1);
    if (password != std::string::npos && line.compare(password, field.size(), field) == 0)
      return "user " + line.substr(0, name);
  }
  return "uid " + std::to_string(uid);
}

}  // namespace

std::string process_text(pid_t pid, uid_t uid) {
  return (pid == 0 ? "a process outside of this container" : "pid " + std::to_string(pid)) + " of " +
         user_text(uid);
}

std::string sender_text(pid_t pid, uid_t uid) {
  if (pid == 0) return "a process outside of this container";
  const auto process = read_process(pid);
  const std::string text = process_text(pid, uid);
  return process ? one_line(process->comm) + " (" + text + ")" : text;
}

void visit_processes(const std::function<void(ProcessInfo&&)>& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc"), closedir);
  if (!directory) return;
  std::vector<pid_t> pids;
  while (const dirent* entry = readdir(directory.get())) {
    if (const auto pid = parse_number<pid_t>(entry->d_name)) pids.push_back(*pid);
  }
  // Read the youngest first: of a program that keeps forking and exiting, only the youngest processes are
  // still alive.
  std::sort(pids.begin(), pids.end(), std::greater<>());
  for (const pid_t pid : pids) {
    if (auto info = read_process(pid)) visit(std::move(*info));
  }
}

std::vector<ProcessInfo> list_processes() {
  std::vector<ProcessInfo> processes;
  visit_processes([&processes](ProcessInfo&& info) { processes.push_back(std::move(info)); });
  return processes;
}

pid_t find_upwards(const ProcessMap& processes, pid_t pid,
                   const std::function<bool(const ProcessInfo&)>& wanted) {
  auto at = processes.find(pid);
  // Bounded, because the table was not read at one moment: reused pids can make a circle in it.
  for (std::size_t left = processes.size(); left > 0 && at != processes.end(); --left) {
    if (wanted(at->second)) return at->first;
    at = processes.find(at->second.parent);
  }
  return 0;
}

bool has_pid_ended(pid_t pid) {
  const UniqueFd fd = open_process(pid);
  return fd ? has_ended(fd.get()) : errno == ESRCH;
}

bool has_entry(std::string_view environment, std::string_view entry) {
  while (!environment.empty()) {
    if (take_entry(environment) == entry) return true;
  }
  return false;
}

std::optional<std::string_view> entry_value(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = take_entry(environment);
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

}  // namespace ddp::launcher
