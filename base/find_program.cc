#include "base/find_program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/one_line.h"

namespace ddp {
namespace {

/// 0 when it can be executed, else the errno that tells why not.
int executable(const std::string& file) {
  struct stat info;
  if (stat(file.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  if (!S_ISREG(info.st_mode)) return EACCES;
  return faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : EACCES;
}

std::string below(std::string_view cwd, std::string_view file) {
  if (cwd.empty() || (!file.empty() && file.front() == '/')) return std::string(file);
  return std::string(cwd) + "/" + std::string(file);
}

Error refused(std::string_view name, const std::string& file, int err) {
  std::string text = "cannot execute '" + std::string(name) + "': ";
  switch (err) {
    case EISDIR:
      text += file + " is a directory";
      break;
    case EACCES:
      text += file + " is not an executable file (chmod +x?)";
      break;
    default:
      return system_error(err, text + file, ErrorCode::kExec);
  }
  return {ErrorCode::kExec, one_line(text), err};
}

}  // namespace

Result<std::string> find_program(std::string_view name, std::optional<std::string_view> path,
                                 std::string_view cwd) {
  if (name.empty()) return Error{ErrorCode::kExec, "cannot execute '': the program has no name", ENOENT};
  if (name.find('/') != std::string_view::npos) {
    std::string file = below(cwd, name);
    if (const int err = executable(file)) return refused(name, file, err);
    return file;
  }
  const std::string_view directories = path.value_or("/bin:/usr/bin");
  // As execvp: one that is there but cannot be executed is remembered, and the search goes on.
  std::optional<Error> found_but;
  for (std::size_t from = 0; from <= directories.size();) {
    const std::size_t end = std::min(directories.find(':', from), directories.size());
    std::string directory = below(cwd, directories.substr(from, end - from));
    if (directory.empty()) directory = ".";
    if (directory.back() != '/') directory += '/';
    std::string file = directory + std::string(name);
    const int err = executable(file);
    if (err == 0) return file;
    if (err != ENOENT && err != ENOTDIR && !found_but) found_but = refused(name, file, err);
    from = end + 1;
  }
  if (found_but) return *found_but;
  return Error{
      ErrorCode::kExec,
      one_line("cannot find program '" + std::string(name) + "' in PATH (" + std::string(directories) + ")"),
      ENOENT};
}

}  // namespace ddp
