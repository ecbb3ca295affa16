#include "apps/train/checkpoint/output_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace ddp::train {

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

Result<> sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return system_error(errno, "fsync " + path);
  return {};
}

Result<> check_output_path(const std::string& option, const std::string& path) {
  const std::string what = option + " " + path;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return Error{ErrorCode::kUsage, what + ": is a directory; name a file"};
    if (!S_ISREG(status.st_mode)) return {};
    const UniqueFd there(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return there ? Result<>() : system_error(errno, what);
  }
  const UniqueFd made(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (made) {
    ::unlink(path.c_str());
    return {};
  }
  if (errno != ENOENT) return system_error(errno, what);
  const std::string directory = directory_of(path);
  const bool there = ::stat(directory.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  return Error{ErrorCode::kUsage,
               what + (there ? ": no file can be created in " : ": there is no directory ") + directory,
               ENOENT};
}

}  // namespace ddp::train
