#include "base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace ddp {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string read_start(const std::string& path, std::size_t limit, int flags) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  std::string text;
  std::array<char, 16 * 1024> buffer;
  while (file && text.size() < limit) {
    const ssize_t count = ::read(file.get(), buffer.data(), std::min(buffer.size(), limit - text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

Result<> write_bytes(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(errno, "write " + path);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

Result<UniqueFd> memory_file(const char* name, std::string_view text) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) return system_error(errno, "memfd_create");
  DDP_TRY(write_bytes(file.get(), text, "a file in memory"));
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

Result<std::pair<UniqueFd, UniqueFd>> make_pipe(std::string_view what) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    Error error = system_error(errno, std::string(what));
    if (error.sys == EMFILE) error.text += "; raise the limit of open files on this node (ulimit -n)";
    return error;
  }
  return std::pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

std::string read_whole(int fd, std::size_t limit) {
  std::string text;
  std::array<char, 64 * 1024> buffer;
  while (text.size() <= limit) {
    const ssize_t count = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

namespace {

constexpr uid_t kUnknownUser = 65534;
/// The kernel's limit.
constexpr int kMostLinks = 40;

/// Returns whether this user namespace shows root as root.
bool root_is_known() {
  char map[32] = {};
  const UniqueFd file(::open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC));
  unsigned inside = 0;
  unsigned outside = 0;
  if (!file || ::read(file.get(), map, sizeof map - 1) <= 0) return true;
  return std::sscanf(map, "%u %u", &inside, &outside) == 2 && inside == 0 && outside == 0;
}

bool is_ours_or_root(uid_t owner) {
  return owner == ::geteuid() || owner == 0 || (owner == kUnknownUser && !root_is_known());
}

std::string owner_text(uid_t owner) {
  return "belongs to uid " + std::to_string(owner) + " and not to you (uid " + std::to_string(::geteuid()) +
         ")";
}

/// Returns whether the mode's bits for the group are those of a POSIX ACL, which may name other users.
bool has_acl(const std::string& path) {
  return ::lgetxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) > 0 ||
         ::lgetxattr(path.c_str(), "system.posix_acl_default", nullptr, 0) > 0;  // of what is created there
}

std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
}

}  // namespace

std::string distrust_directory(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return std::strerror(errno);
  if (S_ISLNK(found.st_mode)) return "is a symbolic link";
  if (found.st_uid != ::geteuid()) return owner_text(found.st_uid);
  return (found.st_mode & S_IWOTH) != 0 ? "is writable by everybody" : "";
}

std::string distrust_file(int fd) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) return std::strerror(errno);
  if (!S_ISREG(found.st_mode)) return "is not a regular file";
  if (!is_ours_or_root(found.st_uid)) return owner_text(found.st_uid);
  return (found.st_mode & S_IWOTH) != 0 ? "is writable by everybody" : "";
}

std::string distrust_parent(std::string path) {
  struct stat found {};
  while (::lstat(path.c_str(), &found) != 0) {
    if ((errno != ENOENT && errno != ENOTDIR) || path == "/" || path == ".") return "";
    path = parent_of(path);
  }
  const std::string name = "the directory " + path;
  if (S_ISLNK(found.st_mode)) {
    if (!is_ours_or_root(found.st_uid))
      return name + " is a symbolic link of another user (uid " + std::to_string(found.st_uid) + ')';
    if (::stat(path.c_str(), &found) != 0) return "";  // creating a directory there reports the reason
  }
  // Project directories often belong to a colleague or a service, and are open to the group.
  const bool shared = (found.st_mode & S_IWGRP) != 0 && ::group_member(found.st_gid) != 0;
  const bool trusted = is_ours_or_root(found.st_uid) || shared || ::geteuid() == 0;
  return trusted ? "" : name + ' ' + owner_text(found.st_uid);
}

std::string distrust_program(const std::string& path) {
  char real[PATH_MAX];
  if (::realpath(path.c_str(), real) == nullptr) return errno == ENOENT ? "" : std::strerror(errno);
  const bool own_group = ::getegid() == ::geteuid();
  std::string part = real;
  // Each directory up to the root: whoever may rename one of them can replace the program.
  for (bool over = false; !over; part = parent_of(part)) {
    struct stat found {};
    if (::lstat(part.c_str(), &found) != 0) return part + ": " + std::strerror(errno);
    if (!is_ours_or_root(found.st_uid)) return part + ' ' + owner_text(found.st_uid);
    const bool own = found.st_gid == 0 || (own_group && found.st_gid == ::getegid());
    const bool of_group = (found.st_mode & S_IWGRP) != 0 && (!own || has_acl(part));
    // In a sticky directory (/tmp) others can create files, but not rename or replace those of its owner.
    const bool sticky = S_ISDIR(found.st_mode) && (found.st_mode & S_ISVTX) != 0;
    if (!sticky && (of_group || (found.st_mode & S_IWOTH) != 0)) return "other users may write to " + part;
    over = part == "/";
  }
  return "";
}

std::string distrust_companion(const std::string& path) {
  const std::string why = distrust_program(path);
  // If this program itself could be replaced, its companions are no further risk.
  return why.empty() || !distrust_program("/proc/self/exe").empty() ? "" : why;
}

Result<std::string> follow_trusted_links(std::string path) {
  for (int i = 0; i < kMostLinks; ++i) {
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0 || !S_ISLNK(found.st_mode)) return path;
    if (!is_ours_or_root(found.st_uid)) {
      return Error{ErrorCode::kSystem,
                   path + " is a symbolic link of another user (uid " + std::to_string(found.st_uid) + ')',
                   EPERM};
    }
    char target[PATH_MAX];
    const ssize_t size = ::readlink(path.c_str(), target, sizeof target);
    if (size < 0) return system_error(errno, path);
    const std::string next(target, static_cast<std::size_t>(size));
    path = next.starts_with('/') ? next : parent_of(path) + '/' + next;
  }
  return system_error(ELOOP, path);
}

}  // namespace ddp
