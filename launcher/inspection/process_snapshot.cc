#include "launcher/inspection/process_snapshot.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "base/files.h"
#include "base/parse_text.h"
#include "base/unique_fd.h"
#include "launcher/hang/wait_state.h"

namespace ddp::launcher {
namespace {

constexpr std::size_t kThreads = 512;
constexpr std::size_t kProcesses = 64;
constexpr std::size_t kDescriptors = 4096;
constexpr std::size_t kTcpTable = 1u << 20;
constexpr std::size_t kKernelStacks = 16;
constexpr std::size_t kSocketsNamed = 16;

std::string read_link(const std::string& path) {
  std::array<char, 512> target;
  const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
  return size > 0 ? std::string(target.data(), static_cast<std::size_t>(size)) : std::string();
}

std::vector<std::uint64_t> numbers_in(const std::string& directory, std::size_t limit) {
  std::vector<std::uint64_t> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(directory.c_str()), ::closedir);
  if (!open) return numbers;
  while (const dirent* entry = ::readdir(open.get())) {
    const auto number = parse_number<std::uint64_t>(entry->d_name);
    if (number && numbers.size() < limit) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

struct Thread {
  pid_t tid = 0;
  std::string comm;
  ThreadSnapshot snapshot;
};

Thread sample_thread(pid_t pid, pid_t tid) {
  const std::string base = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/";
  Thread thread;
  thread.tid = tid;
  if (const auto info = parse_stat(read_start(base + "stat", 4096))) {
    thread.comm = info->comm;
    thread.snapshot.state = info->state;
  }
  thread.snapshot.wchan = read_start(base + "wchan", 256);
  parse_syscall(read_start(base + "syscall", 256), thread.snapshot);
  return thread;
}

/// The sockets of a process, and all sockets of its network namespace by inode.
struct Sockets {
  std::map<std::uint64_t, TcpSocket> table;
  std::vector<const TcpSocket*> own;
};

Sockets read_sockets(pid_t pid) {
  Sockets sockets;
  const std::string base = "/proc/" + std::to_string(pid);
  parse_tcp_table(read_start(base + "/net/tcp", kTcpTable), sockets.table);
  parse_tcp_table(read_start(base + "/net/tcp6", kTcpTable), sockets.table);
  for (const std::uint64_t fd : numbers_in(base + "/fd", kDescriptors)) {
    const auto inode = socket_inode(read_link(base + "/fd/" + std::to_string(fd)));
    const auto known = inode ? sockets.table.find(*inode) : sockets.table.end();
    if (known != sockets.table.end()) sockets.own.push_back(&known->second);
  }
  return sockets;
}

std::string doing(pid_t pid, const ThreadSnapshot& snapshot, const Sockets& sockets) {
  std::string target;
  if (waits_for_descriptor(snapshot)) {
    const std::string link =
        read_link("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(snapshot.argument));
    if (!link.empty()) target = descriptor_text(link, sockets.table);
  }
  return wait_text(snapshot, target);
}

std::string sockets_text(const Sockets& sockets) {
  std::size_t established = 0;
  std::set<std::string> listening;
  std::set<std::string> connecting;
  for (const TcpSocket* socket : sockets.own) {
    if (socket->state == kTcpEstablished) ++established;
    if (socket->state == kTcpConnecting) connecting.insert(socket->remote);
    if (socket->state == kTcpListening) listening.insert(socket->local);
  }
  std::string text = "TCP sockets: " + std::to_string(established) + " connected";
  std::size_t named = 0;
  for (const std::string& remote : connecting)
    if (named++ < kSocketsNamed) text += ", connecting to " + remote + " (no answer yet)";
  for (const std::string& local : listening)
    if (named++ < kSocketsNamed) text += ", listening at " + local;
  return text + "\n";
}

/// One line for threads that do the same, with the kernel stack of the first of them.
std::string threads_text(pid_t pid, const std::vector<Thread>& threads, const Sockets& sockets) {
  struct ThreadGroup {
    std::string what;
    std::size_t count = 0;
    pid_t first = 0;
  };
  std::vector<ThreadGroup> groups;
  for (const Thread& thread : threads) {
    const std::string what = thread.comm + ": " + doing(pid, thread.snapshot, sockets);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&what](const ThreadGroup& known) { return known.what == what; });
    if (group == groups.end()) group = groups.insert(groups.end(), ThreadGroup{what, 0, thread.tid});
    ++group->count;
  }
  std::string text = "threads of " + std::to_string(pid) + ":\n";
  int refused = 0;
  std::size_t stacks = 0;
  for (const ThreadGroup& group : groups) {
    text += "  " + std::to_string(group.count) + " x " + group.what + "\n";
    if (refused != 0 || stacks++ >= kKernelStacks) continue;
    errno = 0;
    const std::string stack =
        read_start("/proc/" + std::to_string(pid) + "/task/" + std::to_string(group.first) + "/stack", 4096);
    if (stack.empty() && errno != 0) refused = errno;
    for (std::string_view rest = stack; !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      text += "      " + std::string(rest.substr(0, end)) + "\n";
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  if (refused != 0 && refused != ESRCH) {
    text += "  kernel stacks: " + std::string(std::strerror(refused)) + " (only root may read them)\n";
  }
  return text;
}

bool is_shell(const std::string& comm) {
  constexpr std::string_view kShells[] = {"sh", "bash", "dash", "zsh", "ksh", "busybox", "env", "time"};
  return std::find(std::begin(kShells), std::end(kShells), comm) != std::end(kShells);
}

/// Skips a shell or wrapper that waits for its only child, since the child is what hangs.
pid_t working_process(const std::vector<ProcessInfo>& tree) {
  pid_t subject = tree.front().pid;
  for (;;) {
    const auto is_child = [subject](const ProcessInfo& info) {
      return info.parent == subject && info.state != 'Z';
    };
    if (std::count_if(tree.begin(), tree.end(), is_child) != 1) return subject;
    const auto self = std::find_if(tree.begin(), tree.end(),
                                   [subject](const ProcessInfo& info) { return info.pid == subject; });
    const Thread main = sample_thread(subject, subject);
    if (!is_shell(self->comm) && !wait_text(main.snapshot, {}).ends_with("wait for a child")) return subject;
    subject = std::find_if(tree.begin(), tree.end(), is_child)->pid;
  }
}

}  // namespace

ProcessForest::ProcessForest() {
  visit_processes([this](ProcessInfo&& info) {
    children_.emplace(info.parent, info.pid);
    const pid_t pid = info.pid;
    processes_.emplace(pid, std::move(info));
  });
}

std::vector<ProcessInfo> ProcessForest::tree(pid_t root) const {
  std::vector<ProcessInfo> tree;
  if (const auto self = processes_.find(root); self != processes_.end()) tree.push_back(self->second);
  // Bounded by the number of processes, since data read at different moments may contain a cycle.
  for (std::size_t next = 0; next < tree.size() && tree.size() <= processes_.size(); ++next) {
    const auto [first, last] = children_.equal_range(tree[next].pid);
    for (auto child = first; child != last; ++child)
      tree.push_back(processes_.at(child->second));
  }
  return tree;
}

ProcessSnapshot take_snapshot(pid_t leader, const ProcessForest& forest) {
  ProcessSnapshot result;
  const auto tree = forest.tree(leader);
  if (tree.empty()) {
    result.subject = leader;
    result.state = "ended";
    return result;
  }
  result.subject = working_process(tree);
  const Sockets sockets = read_sockets(result.subject);
  std::vector<Thread> threads;
  for (const std::uint64_t tid : numbers_in("/proc/" + std::to_string(result.subject) + "/task", kThreads))
    threads.push_back(sample_thread(result.subject, static_cast<pid_t>(tid)));
  result.state = doing(result.subject, sample_thread(result.subject, result.subject).snapshot, sockets);
  // A main thread that left by pthread_exit stays a zombie while other threads exist.
  const auto alive = std::find_if(threads.begin(), threads.end(),
                                  [](const Thread& thread) { return thread.snapshot.state != 'Z'; });
  if (result.state == "ended" && alive != threads.end())
    result.state = "main thread ended, another is " + doing(result.subject, alive->snapshot, sockets);

  result.text = "processes:\n";
  for (std::size_t i = 0; i < std::min(tree.size(), kProcesses); ++i) {
    const Thread thread = sample_thread(tree[i].pid, tree[i].pid);
    result.text += "  " + std::to_string(tree[i].pid) + " " + tree[i].comm + ": " +
                   wait_text(thread.snapshot, {}) + "\n";
  }
  if (tree.size() > kProcesses)
    result.text += "  and " + std::to_string(tree.size() - kProcesses) + " more\n";
  result.text += threads_text(result.subject, threads, sockets);
  result.text += sockets_text(sockets);
  if (result.text.size() > kMaxSnapshotText) result.text.resize(kMaxSnapshotText);
  return result;
}

}  // namespace ddp::launcher
