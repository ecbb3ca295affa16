#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp {

/// Returns the first line of a file without its line end; empty if it cannot be read.
std::string first_line(const std::string& path);

/// Returns at most `limit` bytes from the beginning of a file. If it cannot be read, the text is empty and
/// errno says why. `flags` are further flags of open(). For files that never block.
std::string read_start(const std::string& path, std::size_t limit, int flags = 0);

/// Writes all bytes; errors name `path`.
Result<> write_bytes(int fd, std::string_view bytes, const std::string& path);

/// Returns a file in memory with this text, to be read by another process from its beginning: no write of it
/// can block.
Result<UniqueFd> memory_file(const char* name, std::string_view text = {});

/// Returns the end to read from and the end to write to. The error says `what` the pipe is for.
Result<std::pair<UniqueFd, UniqueFd>> make_pipe(std::string_view what);

/// Returns the content of a file from its beginning, wherever its offset is; of a file longer than `limit`,
/// more bytes than that.
std::string read_whole(int fd, std::size_t limit = std::string::npos);

/// Returns the entries of a directory, unsorted, without "." and "..". If reading fails (a directory of /proc
/// whose process has ended, a disk with errors), returns the entries read so far and sets `failed`. Does not
/// throw.
inline std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory,
                                                         std::error_code& failed) {
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed))
    entries.push_back(at->path());
  return entries;
}

inline std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory) {
  std::error_code ignored;
  return list_directory(directory, ignored);
}

/// Guards against other users of the machine who own an output directory, move it, or redirect the output by
/// a symbolic link, and against files that they wrote. Users who share a group with write access to a
/// directory are trusted. A user namespace shows files of unknown users, often root, as files of uid 65534;
/// they count as root's.

/// Returns why an existing directory is unsafe for output: it is a symbolic link, belongs to another user, or
/// is writable by everybody. Empty: it is safe.
std::string distrust_directory(const std::string& path);

/// Returns why the text of an open file may be another user's: the file belongs neither to this user nor to
/// root, or is writable by everybody. Empty: it is safe.
std::string distrust_file(int fd);

/// Returns why no directory may be created at or below `path`; empty: it may. The owner of the nearest
/// existing directory at or above `path` could move its contents. The owner must be root, this user, or share
/// a group with write access with this user. Write access for everybody is the owner's choice (a Kubernetes
/// emptyDir). Root also accepts a directory of any user: in a container it is the user's, mounted. A symbolic
/// link of root or of this user is followed.
std::string distrust_parent(std::string path);

/// Returns why a program must not be executed: other users could replace it. The file and every directory
/// above it, without symbolic links, must belong to root or to this user, and nobody else may write to them.
/// A sticky directory may be writable. So may what belongs to the group of root, or to this user's own group,
/// which has this user's number, unless an access control list names more users. Empty: the program is safe,
/// or does not exist. `safe` of remote/bootstrap/bootstrap.cc is the same rule on a node that has no agent
/// yet.
std::string distrust_program(const std::string& path);

/// The same for a program that is executed because it lies beside this one. This program's own place counts
/// as safe, since its user has chosen it.
std::string distrust_companion(const std::string& path);

/// Follows a chain of symbolic links in the last component of `path` to its end. Error: a link belongs
/// neither to this user nor to root, or there are too many links.
Result<std::string> follow_trusted_links(std::string path);

}  // namespace ddp
