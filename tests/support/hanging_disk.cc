// Runs a command for which a directory lies on a disk that hangs at times:
//
//   hanging_disk DIRECTORY COMMAND [ARGUMENT…]
//
// While the file DIRECTORY/HANG exists, every call of the command and its descendants with a path below
// DIRECTORY waits in the kernel, as on a network disk whose server is gone. DIRECTORY/HANGING appears with
// the first such call. SIGKILL ends such a call. It uses seccomp's user notification; the exit code is 77 if
// that is unavailable.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

/// A system call, and the index of its path argument.
struct DiskCall {
  int number;
  int path;
};
constexpr DiskCall kCalls[] = {
#ifdef SYS_open
    {SYS_open, 0},    {SYS_stat, 0},       {SYS_lstat, 0},     {SYS_access, 0},    {SYS_mkdir, 0},
    {SYS_rename, 1},  {SYS_unlink, 0},     {SYS_chmod, 0},     {SYS_readlink, 0},
#endif
    {SYS_openat, 1},  {SYS_newfstatat, 1}, {SYS_statx, 1},     {SYS_faccessat, 1}, {SYS_faccessat2, 1},
    {SYS_mkdirat, 1}, {SYS_renameat, 3},   {SYS_renameat2, 3}, {SYS_unlinkat, 1},  {SYS_readlinkat, 1},
    {SYS_execve, 0},  {SYS_chdir, 0},
};

int path_argument(int number) {
  for (const DiskCall& call : kCalls)
    if (call.number == number) return call.path;
  return 0;
}

/// Returns the listener's descriptor, or -1.
int install_filter() {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const DiskCall& call : kCalls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call.number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return static_cast<int>(
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter));
}

bool send_descriptor(int socket, int descriptor) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  return sendmsg(socket, &message, 0) == 1;
}

int receive_descriptor(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  int descriptor = -1;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message) != nullptr)
    std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  return descriptor;
}

std::string string_of(pid_t process, unsigned long long address) {
  const int memory = open(("/proc/" + std::to_string(process) + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
  char text[4096] = {};
  // Read no further than the end of a page: the next page may be unmapped.
  for (std::size_t size = 0;
       memory >= 0 && size + 1 < sizeof text && std::memchr(text, 0, size) == nullptr;) {
    const std::size_t page = 4096 - (address + size) % 4096;
    const std::size_t most = page < sizeof text - 1 - size ? page : sizeof text - 1 - size;
    const ssize_t count = pread(memory, text + size, most, static_cast<off_t>(address + size));
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  close(memory);
  return text;
}

class Server {
 public:
  Server(int listener, std::string directory) : listener_(listener), directory_(std::move(directory)) {}

  /// Runs until the filter applies to no process.
  void serve() {
    // Receive on a separate thread: a call that is killed before it is received leaves the receiver waiting.
    std::thread([this] { receive(); }).detach();
    for (;;) {
      pollfd look{listener_, 0, 0};
      if (poll(&look, 1, 20) > 0 && (look.revents & POLLHUP) != 0) return;
      const std::lock_guard lock(mutex_);
      if (hangs()) continue;
      for (const unsigned long long id : held_)
        resume(id);
      held_.clear();
    }
  }

 private:
  bool hangs() const { return access((directory_ + "/HANG").c_str(), F_OK) == 0; }

  void resume(unsigned long long id) const {
    seccomp_notif_resp answer = {};
    answer.id = id;
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }

  void receive() {
    for (;;) {
      seccomp_notif call = {};
      if (ioctl(listener_, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
      const int argument = path_argument(call.data.nr);
      const std::string path = string_of(static_cast<pid_t>(call.pid), call.data.args[argument]);
      const std::lock_guard lock(mutex_);
      if (!path.starts_with(directory_ + "/") || !hangs()) {
        resume(call.id);
        continue;
      }
      held_.push_back(call.id);
      close(open((directory_ + "/HANGING").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
  }

  const int listener_;
  const std::string directory_;
  std::mutex mutex_;
  std::vector<unsigned long long> held_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 77;
  // The command keeps this pid. The server is no process's child and holds none of its descriptors.
  const pid_t child = fork();
  if (child == 0) {
    if (fork() != 0) _exit(0);
    setsid();
    close(ends[0]);
    const int listener = receive_descriptor(ends[1]);
    if (listener < 0) _exit(0);
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int standard : {0, 1, 2})
      dup2(null, standard);
    char ready = 1;
    if (write(ends[1], &ready, 1) == 1) Server(listener, argv[1]).serve();
    _exit(0);
  }
  close(ends[1]);
  waitpid(child, nullptr, 0);
  const int listener = install_filter();
  char ready = 0;
  // From here on, each call with a path waits until it is served.
  if (listener < 0 || !send_descriptor(ends[0], listener) || read(ends[0], &ready, 1) != 1) {
    std::fprintf(stderr, "hanging_disk: seccomp: %s\n", std::strerror(errno));
    return 77;
  }
  close(listener);
  execv(argv[2], argv + 2);
  std::perror(argv[2]);
  return 127;
}
