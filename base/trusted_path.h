#pragma once

#include <string>

#include "base/result.h"

namespace ddp {

/// What other users of the machine can do to a place where we write: own the directory, move it, or lead us
/// elsewhere by a symbolic link. Who shares a group that may write to a directory is trusted. A user
/// namespace shows the files of users that it does not know, often root, as those of uid 65534: they count as
/// root's.

/// Why a directory that exists is not one to write output in: it is a link, another user's, or everybody may
/// write to it. Empty: it may be used.
std::string distrust_directory(const std::string& path);

/// Why no directory is made at or below `path`: the owner of the nearest directory at or above it that exists
/// could move what is in it. The owner must be root, we, or share with us a group that may write to it; that
/// everybody may write to it is the owner's choice (a Kubernetes emptyDir). Root also takes a directory of a
/// user: in a container that is the user's, mounted. A link of root's or ours is followed. Empty: it may be
/// used.
std::string distrust_parent(std::string path);

/// The end of a chain of symbolic links in the last component of `path`. Error: a link is neither ours nor
/// root's, or there are too many.
Result<std::string> follow_trusted_links(std::string path);

}  // namespace ddp
