// Measures the lower bound of the cost of merging output. The program has one thread, no agent process, no
// link and no flow control.
//
// plain_merger [-l] [-d DIR] WORKERS COMMAND…
//   Starts COMMAND WORKERS times with BENCH_RANK=i, each with a pipe of 256 KiB, and passes whole lines on.
//   -l      put the label "[i] " before each line
//   -d DIR  also write the output of each worker to the file DIR/i
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kHold = 1U << 18;  // a longer line is cut
constexpr std::size_t kPieces = 1000;

struct Worker {
  std::string label;
  int file = -1;
  std::unique_ptr<char[]> held = std::make_unique<char[]>(kHold + 1);
  std::size_t size = 0;
};

void write_all(iovec* pieces, std::size_t count) {
  while (count != 0) {
    const ssize_t done = ::writev(1, pieces, static_cast<int>(count));
    if (done < 0) {
      if (errno == EINTR) continue;
      std::perror("plain_merger: writev");
      std::exit(1);
    }
    auto left = static_cast<std::size_t>(done);
    for (; count != 0 && left >= pieces->iov_len; ++pieces, --count)
      left -= pieces->iov_len;
    if (count != 0) {
      pieces->iov_base = static_cast<char*>(pieces->iov_base) + left;
      pieces->iov_len -= left;
    }
  }
}

/// Writes the whole lines of `worker` and keeps the rest.
void pass_lines(Worker& worker, bool label) {
  static iovec pieces[kPieces];
  char* begin = worker.held.get();
  char* const end = begin + worker.size;
  const bool full = worker.size >= kHold;
  std::size_t count = 0;
  if (!label) {
    auto* newline = static_cast<char*>(::memrchr(begin, '\n', worker.size));
    if (newline == nullptr && full) newline = end - 1;
    if (newline != nullptr) {
      pieces[count++] = {begin, static_cast<std::size_t>(newline + 1 - begin)};
      begin = newline + 1;
    }
  }
  while (label && begin < end) {
    auto* newline = static_cast<char*>(std::memchr(begin, '\n', static_cast<std::size_t>(end - begin)));
    if (newline == nullptr && !(full && begin == worker.held.get())) break;
    if (newline == nullptr) newline = end - 1;
    pieces[count++] = {worker.label.data(), worker.label.size()};
    pieces[count++] = {begin, static_cast<std::size_t>(newline + 1 - begin)};
    begin = newline + 1;
    if (count == kPieces) write_all(pieces, count), count = 0;
  }
  write_all(pieces, count);
  worker.size = static_cast<std::size_t>(end - begin);
  std::memmove(worker.held.get(), begin, worker.size);
}

int start(int rank, char** command, char** environment) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return -1;
  ::fcntl(ends[0], F_SETPIPE_SZ, static_cast<int>(kHold));
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ::setenv("BENCH_RANK", std::to_string(rank).c_str(), 1);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, command[0], &actions, nullptr, command, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  return failed != 0 ? -1 : ends[0];
}

}  // namespace

int main(int argc, char** argv) {
  bool label = false;
  std::string directory;
  int option = 0;
  while ((option = ::getopt(argc, argv, "+ld:")) != -1) {
    if (option == 'l') label = true;
    if (option == 'd') directory = optarg;
  }
  argv += optind - 1;
  argc -= optind - 1;
  if (argc < 3) {
    std::fputs("usage: plain_merger [-l] [-d DIR] WORKERS COMMAND…\n", stderr);
    return 2;
  }
  std::vector<Worker> workers(static_cast<std::size_t>(std::atoi(argv[1])));
  std::vector<pollfd> watched(workers.size());
  for (std::size_t at = 0; at < workers.size(); ++at) {
    watched[at] = {start(static_cast<int>(at), argv + 2, environ), POLLIN, 0};
    if (watched[at].fd < 0) {
      std::perror("plain_merger: cannot start the command");
      return 1;
    }
    workers[at].label = "[" + std::to_string(at) + "] ";
    if (!directory.empty()) {
      workers[at].file = ::open((directory + "/" + std::to_string(at)).c_str(),
                                O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    }
  }
  std::size_t live = workers.size();
  while (live != 0 && ::poll(watched.data(), watched.size(), -1) > 0) {
    for (std::size_t at = 0; at < workers.size(); ++at) {
      if (watched[at].revents == 0) continue;
      Worker& worker = workers[at];
      const ssize_t size = ::read(watched[at].fd, worker.held.get() + worker.size, kHold - worker.size);
      if (size < 0) continue;
      if (worker.file >= 0 &&
          ::write(worker.file, worker.held.get() + worker.size, static_cast<std::size_t>(size)) != size) {
        std::perror("plain_merger: the file of a worker");
        return 1;
      }
      worker.size += static_cast<std::size_t>(size);
      if (size == 0) {
        if (worker.size != 0) worker.held[worker.size++] = '\n';
        ::close(watched[at].fd);
        watched[at].fd = -1;
        --live;
      }
      pass_lines(worker, label);
    }
  }
  while (::wait(nullptr) > 0)
    continue;
  return 0;
}
