#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace ddp {

/// The entries of a directory, in no order, without "." and "..". Where reading fails (a directory of /proc
/// whose process has ended, a disk with errors): those that came before, and `failed` says why. Throws
/// nothing.
std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory,
                                                  std::error_code& failed);
std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory);

}  // namespace ddp
