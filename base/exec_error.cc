#include "base/exec_error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/one_line.h"
#include "base/unique_fd.h"

namespace ddp {
namespace {

std::string first_bytes(const std::string& file) {
  UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char buffer[256];
  const ssize_t size = fd ? read(fd.get(), buffer, sizeof buffer) : -1;
  return size > 0 ? std::string(buffer, static_cast<std::size_t>(size)) : std::string();
}

/// What stands behind "#!", without its argument: "" when there is none.
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
    if (interpreter.empty()) return "the file is there, but the loader or interpreter that it names is not";
    if (interpreter.back() == '\r') return "its first line ends as Windows does; save it with Unix line ends";
    return "its first line asks for " + interpreter + ", which does not exist";
  }
  if (err == EACCES && exists) {
    if (S_ISDIR(info.st_mode)) return "it is a directory";
    if (faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) != 0) return "it is not executable (chmod +x)";
    return "a directory on the way, the interpreter, or a mount with noexec forbids it";
  }
  if (err == ENOEXEC)
    return "it is no program for this machine, and a script needs a first line #!INTERPRETER";
  if (err == E2BIG) return "arguments and environment together are too long for the kernel";
  return {};
}

}  // namespace

Error exec_error(int err, const std::string& path, const std::string& cwd) {
  Error error = system_error(err, "execute " + path, ErrorCode::kExec);
  const bool relative = path.empty() || path.front() != '/';
  const std::string hint = explain(err, relative && !cwd.empty() ? cwd + "/" + path : path);
  if (!hint.empty()) error.text += ": " + one_line(hint);
  return error;
}

}  // namespace ddp
