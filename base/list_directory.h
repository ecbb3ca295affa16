#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace ddp {

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

}  // namespace ddp
