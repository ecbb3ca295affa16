#include "base/list_directory.h"

namespace ddp {

std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory,
                                                  std::error_code& failed) {
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed))
    entries.push_back(at->path());
  return entries;
}

std::vector<std::filesystem::path> list_directory(const std::filesystem::path& directory) {
  std::error_code ignored;
  return list_directory(directory, ignored);
}

}  // namespace ddp
