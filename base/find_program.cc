#include "base/find_program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "base/text.h"
#include "base/unique_fd.h"

namespace ddp {
namespace {

/// Returns 0 if the file can be executed, else the errno with the reason.
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

std::string first_bytes(const std::string& file) {
  UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char buffer[256];
  const ssize_t size = fd ? read(fd.get(), buffer, sizeof buffer) : -1;
  return size > 0 ? std::string(buffer, static_cast<std::size_t>(size)) : std::string();
}

/// Returns the interpreter named after "#!", without its argument, or "".
std::string interpreter_of(const std::string& head) {
  if (head.compare(0, 2, "#!") != 0) return {};
  const std::size_t from = head.find_first_not_of(" \t", 2);
  if (from == std::string::npos) return {};
  return head.substr(from, head.find_first_of(" \t\n", from) - from);
}

std::string explain(int err, const std::string& file) {
  struct stat info;
  const bool exists = stat(file.c_str(), &info) == 0;
  if (err == ENOENT && exists) {
    const std::string interpreter = interpreter_of(first_bytes(file));
    if (interpreter.empty()) return "the file exists, but the loader or interpreter that it names does not";
    if (interpreter.back() == '\r')
      return "its first line has a Windows line ending; save the file with Unix line endings";
    return "its first line names the interpreter " + interpreter + ", which does not exist";
  }
  if (err == EACCES && exists) {
    if (S_ISDIR(info.st_mode)) return "it is a directory";
    if (faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) != 0) return "it is not executable (chmod +x)";
    return "a parent directory, the interpreter, or a noexec mount forbids it";
  }
  if (err == ENOEXEC)
    return "it is not a program for this machine; a script needs a first line #!INTERPRETER";
  if (err == E2BIG) return "arguments and environment together are too long for the kernel";
  return {};
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
  // As in execvp, a file that cannot be executed does not end the search; its error is kept.
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
  const bool is_here = ::access(below(cwd, name).c_str(), F_OK) == 0;
  std::string where =
      is_here ? "; for the file here write ./" + std::string(name) : " (" + std::string(directories) + ")";
  // Debian has no python.
  if (name == "python" && !is_here && find_program("python3", path, cwd)) where += "; python3 is there";
  return Error{ErrorCode::kExec, one_line("cannot find program '" + std::string(name) + "' in PATH" + where),
               ENOENT};
}

Result<std::string> own_directory() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  if (size < 0) return system_error(errno, "/proc/self/exe");
  const std::string_view text(path, static_cast<std::size_t>(size));
  return std::string(text.substr(0, text.rfind('/')));
}

std::string companion_program(const std::string& directory, const std::string& name) {
  const std::string installed = directory.substr(0, directory.rfind('/')) + "/libexec/ddplaunch/" + name;
  return ::access(installed.c_str(), F_OK) == 0 ? installed : directory + "/" + name;
}

Error exec_error(int err, const std::string& path, const std::string& cwd) {
  Error error = system_error(err, "execute " + path, ErrorCode::kExec);
  const bool relative = path.empty() || path.front() != '/';
  const std::string hint = explain(err, relative && !cwd.empty() ? cwd + "/" + path : path);
  if (!hint.empty()) error.text += ": " + one_line(hint);
  return error;
}

}  // namespace ddp
