// This library injects disk faults into a program under test (LD_PRELOAD):
//   DDP_FSYNC_DELAY_MS=N   each fsync takes N ms longer
//   DDP_FSYNC_LOG=FILE     each fsync appends the path of the flushed file
//   DDP_FSYNC_PAIRS=1      each fsync of a .safetensors file waits for a second one; after 30 s it aborts
//   DDP_OPEN_DELAY=PREFIX  each open() of a path with this prefix takes 3 s longer
//   DDP_UNREADABLE=DIR     this directory cannot be listed
//   DDP_NO_EXCHANGE=1      the file system cannot exchange two names
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <string>

namespace {

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int fd) {
  char path[4096] = {};
  return ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path - 1) < 0 ? "" : path;
}

void await_second_flush(int fd) {
  static std::atomic<int> begun;
  if (::getenv("DDP_FSYNC_PAIRS") == nullptr || !path_of(fd).ends_with(".safetensors")) return;
  const int number = ++begun;
  for (int ms = 0; begun < number + number % 2; ++ms) {
    if (ms == 30'000) ::abort();
    ::usleep(1000);
  }
}

void log_flush(int fd) {
  const char* file = ::getenv("DDP_FSYNC_LOG");
  if (file == nullptr) return;
  const std::string line = path_of(fd) + "\n";
  const int log = ::open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log < 0 || ::write(log, line.data(), line.size()) < 0) ::abort();
  ::close(log);
}

int open_at(int at, const char* path, int flags, mode_t mode) {
  const char* unreadable = ::getenv("DDP_UNREADABLE");
  if (unreadable != nullptr && (flags & O_DIRECTORY) != 0 && std::string(path) == unreadable) {
    errno = EIO;
    return -1;
  }
  return next<int(int, const char*, int, ...)>("openat")(at, path, flags, mode);
}

}  // namespace

extern "C" int fsync(int fd) {
  if (const char* delay = ::getenv("DDP_FSYNC_DELAY_MS"))
    ::usleep(static_cast<useconds_t>(std::stoi(delay)) * 1000);
  await_second_flush(fd);
  log_flush(fd);
  return next<int(int)>("fsync")(fd);
}

extern "C" int open(const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  const char* slow = ::getenv("DDP_OPEN_DELAY");
  if (slow != nullptr && std::string(path).starts_with(slow)) ::sleep(3);
  return next<int(const char*, int, ...)>("open")(path, flags, mode);
}

extern "C" int openat(int at, const char* path, int flags, ...) {
  std::va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open_at(at, path, flags, mode);
}

/// A compiler that hardens programs by default (Ubuntu's) makes this call of openat().
extern "C" int __openat_2(int at, const char* path, int flags) {
  return open_at(at, path, flags, 0);
}

extern "C" int renameat2(int from_fd, const char* from, int to_fd, const char* to,
                         unsigned int flags) noexcept {
  if (flags != 0 && ::getenv("DDP_NO_EXCHANGE") != nullptr) {
    errno = EINVAL;
    return -1;
  }
  return next<int(int, const char*, int, const char*, unsigned int)>("renameat2")(from_fd, from, to_fd, to,
                                                                                  flags);
}
