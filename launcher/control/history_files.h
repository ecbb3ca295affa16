#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "launcher/report/host_history.h"

namespace ddp::launcher {

/// The files of a host history (docs/users/host_history.md): UID.MACHINE.jsonl in one directory, which users
/// and machines may share. Each file has one writing user, its owner, and one writing machine, since O_APPEND
/// is atomic on one machine only (NFS). All functions block on the disk.

/// Reads the files of all users. Skips files with another owner than their names say, links, devices, and
/// what exceeds the limits (2000 files, 256 KiB of each, 16 MiB). A missing directory is an empty history.
/// Errors: kSystem, and kUsage if it is no directory, or one in which everybody may delete files.
Result<HostHistory> read_host_history(const std::string& directory, HistoryTime now);

/// Appends lines of HostHistory to the file of this user and machine. Makes the directory with mode 0700 if
/// it is missing. A file of more than 128 KiB becomes the older one of two. Errors: kSystem, and kUsage if
/// the directory or the file cannot be trusted.
Result<> append_host_history(const std::string& directory, std::string_view lines);

}  // namespace ddp::launcher
