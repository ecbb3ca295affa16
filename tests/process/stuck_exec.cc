#include "tests/process/stuck_exec.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

void answer(int fuse, std::uint64_t unique, const void* body, std::size_t size) {
  char bytes[512];
  fuse_out_header head = {};
  head.len = static_cast<std::uint32_t>(sizeof head + size);
  head.unique = unique;
  if (body == nullptr) head.error = -ENOSYS;
  memcpy(bytes, &head, sizeof head);
  if (body != nullptr) memcpy(bytes + sizeof head, body, size);
  if (write(fuse, bytes, head.len) < 0) _exit(9);
}

/// Serves one file, and blocks each process that closes it.
[[noreturn]] void serve(int fuse) {
  static char request[1 << 16];
  for (;;) {
    const ssize_t size = read(fuse, request, sizeof request);
    if (size < 0 && errno == EINTR) continue;
    if (size < static_cast<ssize_t>(sizeof(fuse_in_header))) _exit(0);
    fuse_in_header head;
    memcpy(&head, request, sizeof head);
    fuse_init_out init = {};
    init.major = FUSE_KERNEL_VERSION;
    init.minor = FUSE_KERNEL_MINOR_VERSION;
    init.max_write = 4096;
    fuse_open_out opened = {};
    fuse_attr_out attributes = {};
    attributes.attr.ino = FUSE_ROOT_ID;
    attributes.attr.mode = S_IFREG | 0644;
    attributes.attr.nlink = 1;
    switch (head.opcode) {
      case FUSE_INIT: answer(fuse, head.unique, &init, sizeof init); break;
      case FUSE_OPEN: answer(fuse, head.unique, &opened, sizeof opened); break;
      case FUSE_GETATTR: answer(fuse, head.unique, &attributes, sizeof attributes); break;
      case FUSE_FLUSH:
        if (write(3, "r", 1) != 1) _exit(9);
        for (;;)
          pause();
      default: answer(fuse, head.unique, nullptr, 0);
    }
  }
}

[[noreturn]] void skip() {
  [[maybe_unused]] const ssize_t written = write(3, "s", 1);
  _exit(0);
}

}  // namespace

void exec_stuck(const char* program, const char* mode) {
  alarm(20);
  const int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  char options[128];
  snprintf(options, sizeof options, "fd=%d,rootmode=100644,user_id=%u,group_id=%u", fuse, getuid(), getgid());
  // Mount over any file, in a mount namespace that only this process sees.
  if (fuse < 0 || unshare(CLONE_NEWNS) != 0 || mount("", "/", "", MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("stuck", "/proc/version", "fuse", MS_NOSUID | MS_NODEV, options) != 0)
    skip();
  if (fork() == 0) {
    prctl(PR_SET_NAME, "stuck_server", 0, 0, 0);
    alarm(20);
    serve(fuse);
  }
  if (open("/proc/version", O_RDONLY | O_CLOEXEC) < 0) skip();
  close(fuse);
  execl(program, "worker", mode, nullptr);
  _exit(9);
}
