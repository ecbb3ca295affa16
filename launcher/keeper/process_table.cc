#include "launcher/process_table.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

constexpr std::size_t kMaxEnvironment = 4 * 1024 * 1024;

std::string read_proc(pid_t pid, const char* name, std::size_t limit) {
  const std::string path = "/proc/" + std::to_string(pid) + "/" + name;
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd) return text;
  char chunk[4096];
  while (text.size() < limit) {
    const ssize_t size = read(fd.get(), chunk, sizeof chunk);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    text.append(chunk, static_cast<std::size_t>(size));
  }
  return text;
}

/// Takes the next word from `text` as a number.
template <class T>
bool take(std::string_view& text, T& value) {
  const std::size_t from = text.find_first_not_of(' ');
  if (from == std::string_view::npos) return false;
  text.remove_prefix(from);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

std::optional<ProcessInfo> parse_stat(std::string_view text) {
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return std::nullopt;
  if (text.size() < close + 4) return std::nullopt;
  ProcessInfo info;
  std::string_view head = text.substr(0, open);
  if (!take(head, info.pid)) return std::nullopt;
  info.comm = text.substr(open + 1, close - open - 1);
  info.state = text[close + 2];
  std::string_view rest = text.substr(close + 3);
  pid_t group;
  if (!take(rest, info.parent) || !take(rest, group) || !take(rest, info.session)) return std::nullopt;
  // Of fields 7 (tty_nr) to 21 (itrealvalue) only 14 to 17 (utime, stime, cutime, cstime) are wanted.
  for (int field = 7; field <= 21; ++field) {
    std::int64_t value = 0;
    std::uint64_t wide;
    std::string_view again = rest;
    if (!take(rest, value)) {
      rest = again;
      if (!take(rest, wide)) return std::nullopt;
    }
    if (field >= 14 && field <= 17 && value > 0) info.cpu += static_cast<std::uint64_t>(value);
  }
  if (!take(rest, info.started)) return std::nullopt;
  return info;
}

std::optional<ProcessInfo> read_process(pid_t pid) {
  return parse_stat(read_proc(pid, "stat", 4096));
}

void visit_processes(const std::function<void(ProcessInfo&&)>& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc"), closedir);
  if (!directory) return;
  std::vector<pid_t> pids;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && end == name.data() + name.size()) pids.push_back(pid);
  }
  // The youngest first: they were read last, and of a program that keeps forking and ending only they still
  // live.
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

std::optional<uid_t> process_uid(pid_t pid) {
  const std::string status = read_proc(pid, "status", 8192);
  const std::size_t at = status.find("\nUid:\t");
  if (at == std::string::npos) return std::nullopt;
  std::string_view text(status);
  text.remove_prefix(at + 6);
  uid_t real;
  uid_t effective;
  if (!take(text, real)) return std::nullopt;
  text.remove_prefix(std::min(text.find_first_not_of('\t'), text.size()));
  if (!take(text, effective)) return std::nullopt;
  return effective;
}

std::string process_environment(pid_t pid) {
  return read_proc(pid, "environ", kMaxEnvironment);
}

bool has_entry(std::string_view environment, std::string_view entry) {
  const bool whole = entry.find('=') != std::string_view::npos;
  while (!environment.empty()) {
    const std::size_t end = std::min(environment.find('\0'), environment.size());
    std::string_view candidate = environment.substr(0, end);
    if (!whole) candidate = candidate.substr(0, candidate.find('='));
    if (candidate == entry) return true;
    environment.remove_prefix(std::min(end + 1, environment.size()));
  }
  return false;
}

}  // namespace ddp::launcher
