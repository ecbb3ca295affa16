// Without I/O first: which directory is ours, by the texts of the kernel. Then the files of a group, and
// Cgroup, which makes, kills and removes it. The reasons are in docs/decisions/0008-cgroups.md.
#include "launcher/keeper/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/text.h"
#include "launcher/keeper/process_table.h"

namespace ddp::launcher {
namespace {

constexpr std::string_view kPrefix = "ddplaunch.";
/// NAME_MAX is 255; the rest is for prefix and numbers.
constexpr std::size_t kMaxJobId = 160;
constexpr std::string_view kDeleted = " (deleted)";

/// Cuts `text` after the next `mark` and returns the part before the mark.
std::string_view cut_word(std::string_view& text, char mark) {
  const std::size_t end = std::min(text.find(mark), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    if (cut_word(list, ',') == word) return true;
  }
  return false;
}

/// mountinfo writes space, tab, newline, backslash and '#' as a backslash and three octal digits.
std::string unescaped(std::string_view text) {
  std::string plain;
  const auto digit = [&text](std::size_t at) {
    return at < text.size() && text[at] >= '0' && text[at] <= '7' ? text[at] - '0' : -1;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && digit(i + 1) >= 0 && digit(i + 2) >= 0 && digit(i + 3) >= 0) {
      plain += static_cast<char>(digit(i + 1) * 64 + digit(i + 2) * 8 + digit(i + 3));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

struct Mount {
  std::string root;   ///< the group that the mount point shows
  std::string point;  ///< the path of the mount point
};

/// Parses "36 35 98:0 ROOT POINT rw,noatime master:1 - cgroup2 cgroup2 rw,…". Any number of optional fields
/// stands before the dash.
std::optional<Mount> cgroup_mount(std::string_view line, std::string_view controller) {
  for (int skipped = 0; skipped < 3; ++skipped)
    cut_word(line, ' ');
  const std::string_view root = cut_word(line, ' ');
  const std::string_view point = cut_word(line, ' ');
  while (!line.empty() && cut_word(line, ' ') != "-") {
  }
  const std::string_view type = cut_word(line, ' ');
  cut_word(line, ' ');  // the source is not used
  const bool wanted =
      controller.empty() ? type == "cgroup2" : type == "cgroup" && has_word(cut_word(line, ' '), controller);
  if (!wanted || !root.starts_with('/') || !point.starts_with('/')) return std::nullopt;
  return Mount{unescaped(root), unescaped(point)};
}

/// Finds "0::/path" (version 2) or "5:cpu,cpuacct:/path" (version 1).
std::optional<std::string_view> own_group(std::string_view self_cgroup, std::string_view controller) {
  while (!self_cgroup.empty()) {
    std::string_view line = cut_word(self_cgroup, '\n');
    const std::string_view number = cut_word(line, ':');
    const std::string_view controllers = cut_word(line, ':');
    const bool wanted =
        controller.empty() ? number == "0" && controllers.empty() : has_word(controllers, controller);
    if (!wanted) continue;
    // "/../x" lies outside the namespace whose root the mounts show.
    const bool outside = line == "/.." || line.starts_with("/../");
    if (!line.starts_with('/') || outside || line.ends_with(kDeleted)) return std::nullopt;
    return line;
  }
  return std::nullopt;
}

/// The path of `group` relative to `root`: empty or "/…".
std::optional<std::string_view> below(std::string_view group, std::string_view root) {
  if (root == "/") return group == "/" ? "" : group;
  if (!group.starts_with(root)) return std::nullopt;
  group.remove_prefix(root.size());
  if (!group.empty() && !group.starts_with('/')) return std::nullopt;
  return group;
}

// Some versions of linux/magic.h lack these constants.
constexpr long kCgroup2Magic = 0x63677270;
constexpr long kCgroup1Magic = 0x27e0eb;
/// Linux pids are below this number.
constexpr std::uint64_t kPidLimit = std::uint64_t{1} << 22;
/// A name is lost when the cleanup of another agent comes between the group and its lock.
constexpr int kNames = 16;
/// Deeper groups that workers make are ignored.
constexpr int kMaxDepth = 16;
constexpr std::size_t kBatch = 256;
/// A group that does not freeze in this time (a process inside vfork) is killed while it runs.
constexpr std::chrono::milliseconds kFreezeTime{20};

using Clock = std::chrono::steady_clock;

std::string read_at(int directory, const char* name) {
  std::string text;
  const UniqueFd fd(openat(directory, name, O_RDONLY | O_CLOEXEC));
  if (!fd) return text;
  char chunk[4096];
  for (;;) {
    const ssize_t size = read(fd.get(), chunk, sizeof chunk);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
    text.append(chunk, static_cast<std::size_t>(size));
  }
}

void write_at(int directory, const char* name, std::string_view text) {
  const UniqueFd fd(openat(directory, name, O_WRONLY | O_CLOEXEC));
  if (fd) [[maybe_unused]]
    const ssize_t written = write(fd.get(), text.data(), text.size());
}

UniqueFd open_directory(int at, const char* path) {
  return UniqueFd(openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

std::vector<pid_t> pids_in(int directory) {
  const std::string text = read_at(directory, "cgroup.procs");
  std::vector<pid_t> pids;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    pid_t pid = 0;
    const auto [after, error] = std::from_chars(at, end, pid);
    if (error == std::errc() && pid > 0) pids.push_back(pid);  // 0: a process of another PID namespace
    at = std::find(after, end, '\n') + 1;
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

std::vector<std::string> groups_in(int directory) {
  std::vector<std::string> names;
  const int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(copy), closedir);
  if (!entries) {
    close(copy);
    return names;
  }
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

/// Calls `what` for the group and for all groups below it.
void visit(int directory, const std::function<void(int)>& what, int depth = 0) {
  what(directory);
  if (depth == kMaxDepth) return;
  for (const std::string& name : groups_in(directory)) {
    const UniqueFd below = open_directory(directory, name.c_str());
    if (below) visit(below.get(), what, depth + 1);
  }
}

void remove_below(int directory, int depth = 0) {
  if (depth == kMaxDepth) return;
  for (const std::string& name : groups_in(directory)) {
    const UniqueFd below = open_directory(directory, name.c_str());
    if (below) remove_below(below.get(), depth + 1);
    unlinkat(directory, name.c_str(), AT_REMOVEDIR);
  }
}

/// A process that is listed before and after its descriptor was opened is a member of the group. Its number
/// was not reused in between.
void kill_listed(int directory) {
  const std::vector<pid_t> before = pids_in(directory);
  for (std::size_t begin = 0; begin < before.size(); begin += kBatch) {
    const auto batch = std::span(before).subspan(begin, std::min(kBatch, before.size() - begin));
    std::vector<UniqueFd> fds;
    for (const pid_t pid : batch)
      fds.push_back(open_process(pid));
    const std::vector<pid_t> after = pids_in(directory);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (fds[i] && std::binary_search(after.begin(), after.end(), batch[i]))
        (void)signal_process(fds[i].get(), batch[i], SIGKILL);
    }
  }
}

void freeze(int directory) {
  const auto until = Clock::now() + kFreezeTime;
  write_at(directory, "freezer.state", "FROZEN");
  while (read_at(directory, "freezer.state") != "FROZEN\n" && Clock::now() < until)
    poll(nullptr, 0, 1);
}

Error refusal(std::string_view what, int err) {
  return system_error(err, what, ErrorCode::kRefused);
}

void kill_group(int group, bool v2) {
  if (v2) return write_at(group, "cgroup.kill", "1");
  freeze(group);
  visit(group, kill_listed);
  // A frozen process dies of its SIGKILL only when it is thawed.
  write_at(group, "freezer.state", "THAWED");
}

/// Ends what agents left behind that were killed together with their keeper.
void remove_stale(int own, bool v2) {
  for (const std::string& name : groups_in(own)) {
    if (!is_cgroup_name(name)) continue;
    const UniqueFd group = open_directory(own, name.c_str());
    if (!group || flock(group.get(), LOCK_EX | LOCK_NB) != 0) continue;  // its agent or keeper is alive
    remove_below(group.get());
    if (unlinkat(own, name.c_str(), AT_REMOVEDIR) == 0) continue;
    kill_group(group.get(), v2);
    unlinkat(own, name.c_str(), AT_REMOVEDIR);  // or the next job does: dying processes still count
  }
}

}  // namespace

std::string find_cgroup(std::string_view mountinfo, std::string_view self_cgroup,
                        std::string_view controller) {
  const auto group = own_group(self_cgroup, controller);
  if (!group) return {};
  std::optional<Mount> best;
  while (!mountinfo.empty()) {
    const auto mount = cgroup_mount(cut_word(mountinfo, '\n'), controller);
    // The first mount that shows the group wins; a later one at the same mount point covers it.
    if (!mount || (best && best->point != mount->point)) continue;
    if (below(*group, mount->root)) {
      best = mount;
    } else {
      best.reset();
    }
  }
  if (!best) return {};
  const std::string_view rest = *below(*group, best->root);
  return best->point == "/" && !rest.empty() ? std::string(rest) : best->point + std::string(rest);
}

std::string cgroup_name(std::string_view job_id, std::uint32_t attempt, std::uint64_t unique) {
  std::string name(kPrefix);
  for (const char c : job_id.substr(0, kMaxJobId)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
    name += plain ? c : '_';
  }
  return name + '.' + std::to_string(attempt) + '.' + std::to_string(unique);
}

bool is_cgroup_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  for (int numbers = 0; numbers < 2; ++numbers) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || !is_digits(name.substr(dot + 1))) return false;
    name = name.substr(0, dot);
  }
  return !name.empty() && name.find('/') == std::string_view::npos;
}

CgroupDirs own_cgroups() {
  const std::string mounts = read_at(AT_FDCWD, "/proc/self/mountinfo");
  const std::string groups = read_at(AT_FDCWD, "/proc/self/cgroup");
  return {find_cgroup(mounts, groups, ""), find_cgroup(mounts, groups, "freezer")};
}

Result<Cgroup> Cgroup::make(const CgroupDirs& own, std::string_view job_id, std::uint32_t attempt) {
  if (own.v2.empty() && own.freezer.empty())
    return Error{ErrorCode::kRefused, "neither cgroup v2 nor the freezer of v1 is mounted here"};
  if (own.v2.empty()) return make_in(own.freezer, false, job_id, attempt);
  auto group = make_in(own.v2, true, job_id, attempt);
  if (group || own.freezer.empty()) return group;
  auto frozen = make_in(own.freezer, false, job_id, attempt);
  if (frozen) return frozen;
  return Error{ErrorCode::kRefused, group.error().text + "; " + frozen.error().text};
}

Result<Cgroup> Cgroup::make_in(const std::string& own, bool v2, std::string_view job_id,
                               std::uint32_t attempt) {
  const UniqueFd parent = open_directory(AT_FDCWD, own.c_str());
  struct statfs type {};
  if (!parent || fstatfs(parent.get(), &type) != 0) return refusal(own, errno);
  const std::vector<pid_t> members = pids_in(parent.get());
  if (type.f_type != (v2 ? kCgroup2Magic : kCgroup1Magic) ||
      !std::binary_search(members.begin(), members.end(), getpid()))
    return Error{ErrorCode::kRefused, own + " is not this process's control group"};
  // In version 2, a process may leave a group only if its user may write the group's cgroup.procs.
  if (v2 && faccessat(parent.get(), "cgroup.procs", W_OK, AT_EACCESS) != 0)
    return refusal(own + "/cgroup.procs", errno);
  remove_stale(parent.get(), v2);

  Cgroup group;
  group.v2_ = v2;
  int err = EEXIST;
  for (std::uint64_t name = 0; name < kNames && !group.directory_; ++name) {
    // Pids are unique on the machine only within a PID namespace. Containers that share a group directory may
    // have equal ones, so further names are tried.
    const auto unique = static_cast<std::uint64_t>(getpid()) + name * kPidLimit;
    group.path_ = own + '/' + cgroup_name(job_id, attempt, unique);
    if (mkdirat(parent.get(), group.path_.c_str() + own.size() + 1, 0755) != 0) {
      err = errno;
      if (err == EEXIST) continue;
      break;
    }
    group.directory_ = open_directory(AT_FDCWD, group.path_.c_str());
    if (!group.directory_) {
      err = errno;
      continue;
    }
    // Another agent's cleanup may have found the group before this lock. The group is then gone or about to
    // go.
    if (flock(group.directory_.get(), LOCK_SH | LOCK_NB) == 0)
      group.procs_.reset(openat(group.directory_.get(), "cgroup.procs", O_WRONLY | O_CLOEXEC));
    if (!group.procs_) group.directory_.reset();
  }
  if (!group.directory_) return refusal("mkdir " + group.path_, err);
  if (v2 && faccessat(group.directory_.get(), "cgroup.kill", W_OK, AT_EACCESS) != 0) {
    err = errno;
    group.remove();
    return refusal(group.path_ + "/cgroup.kill", err);
  }
  return group;
}

Result<Cgroup> Cgroup::open(std::string path) {
  Cgroup group;
  group.path_ = std::move(path);
  const std::size_t slash = group.path_.rfind('/');
  struct statfs type {};
  if (slash == std::string::npos || !is_cgroup_name(std::string_view(group.path_).substr(slash + 1)))
    return Error{ErrorCode::kRefused, group.path_ + " is not a control group of ddplaunch"};
  group.directory_ = open_directory(AT_FDCWD, group.path_.c_str());
  if (!group.directory_ || fstatfs(group.directory_.get(), &type) != 0) return refusal(group.path_, errno);
  group.v2_ = type.f_type == kCgroup2Magic;
  if (!group.v2_ && type.f_type != kCgroup1Magic)
    return Error{ErrorCode::kRefused, group.path_ + " is not a control group of ddplaunch"};
  // A failure is no error: the group is then about to be removed by another agent, which kills what is in it.
  flock(group.directory_.get(), LOCK_SH | LOCK_NB);
  return group;
}

std::vector<pid_t> Cgroup::pids() const {
  std::vector<pid_t> all;
  visit(directory_.get(), [&all](int group) {
    const std::vector<pid_t> here = pids_in(group);
    all.insert(all.end(), here.begin(), here.end());
  });
  std::sort(all.begin(), all.end());
  return all;
}

void Cgroup::kill() const {
  kill_group(directory_.get(), v2_);
}

bool Cgroup::remove(std::chrono::milliseconds patience) {
  for (const auto until = Clock::now() + patience;;) {
    remove_below(directory_.get());
    if (unlinkat(AT_FDCWD, path_.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return true;
    // EBUSY: killed processes count as members until the kernel has taken them down.
    if (Clock::now() >= until) return false;
    poll(nullptr, 0, 1);
  }
}

}  // namespace ddp::launcher
