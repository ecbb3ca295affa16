#include "apps/train/training/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace ddp::train {

Result<> LineFile::open(const std::string& path) {
  path_ = path;
  // A pipe that nobody reads must not keep us waiting, but one that is read slowly may.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  file_ = UniqueFd(::open(path.c_str(), flags | O_NONBLOCK, 0666));
  if (!file_ || ::fcntl(file_.get(), F_SETFL, O_APPEND) != 0) return system_error(errno, "create " + path);
  return {};
}

void LineFile::append(const std::string& line) {
  if (!file_) return;
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);  // -1: a pipe
  // One write per line, so that a reader of the growing file sees whole ones.
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(file_.get(), line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    done += static_cast<std::size_t>(written);
  }
  if (done == line.size()) return;
  std::fprintf(stderr, "train: %s; training goes on without it\n",
               system_error(errno, "write " + path_).text.c_str());
  // A half line would be taken for a broken file. It fails only where the file is no longer ours to mend.
  if (done > 0 && before >= 0) (void)!::ftruncate(file_.get(), before);
  file_ = UniqueFd();
}

}  // namespace ddp::train
