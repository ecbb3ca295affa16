#pragma once

#include <string>

#include "base/result.h"

namespace ddp {

/// Guards against other users of the machine who own an output directory, move it, or redirect the output by
/// a symbolic link, and against files that they wrote. Users who share a group with write access to a
/// directory are trusted. A user namespace shows files of unknown users, often root, as files of uid 65534;
/// they count as root's.

/// Returns why an existing directory is unsafe for output: it is a link, belongs to another user, or is
/// writable by everybody. Empty: it is safe.
std::string distrust_directory(const std::string& path);

/// Returns why the text of an open file may be another user's: the file belongs neither to this user nor to
/// root, or is writable by everybody. Empty: it is safe.
std::string distrust_file(int fd);

/// Returns why no directory may be created at or below `path`; empty: it may. The owner of the nearest
/// existing directory at or above `path` could move its contents. The owner must be root, this user, or share
/// a group with write access with this user. Write access for everybody is the owner's choice (a Kubernetes
/// emptyDir). Root also accepts a directory of any user: in a container it is the user's, mounted. A link of
/// root or of this user is followed.
std::string distrust_parent(std::string path);

/// Returns why a program must not be executed: other users could replace it. The file and every directory
/// above it, without symbolic links, must belong to root or to this user, and nobody else may write to them.
/// A sticky directory may be writable. So may what belongs to the group of root, or to this user's own group,
/// which has this user's number, unless an access control list names more users. Empty: the program is safe,
/// or does not exist. `safe` of remote/bootstrap/push_script.cc is the same rule on a node that has no agent
/// yet.
std::string distrust_program(const std::string& path);

/// The same for a program that is executed because it lies beside this one. This program's own place counts
/// as safe, since its user has chosen it.
std::string distrust_companion(const std::string& path);

/// Follows a chain of symbolic links in the last component of `path` to its end. Error: a link belongs
/// neither to this user nor to root, or there are too many links.
Result<std::string> follow_trusted_links(std::string path);

}  // namespace ddp
