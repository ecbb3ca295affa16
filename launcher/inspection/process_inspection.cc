// What /proc says about one worker (take_snapshot), without tools and at once; then the tools, one node's
// ranks in turn; and NCCL's own answer.
#include "launcher/inspection/process_inspection.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "base/blocking_calls.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/hang/hang_detection.h"
#include "launcher/hang/wait_state.h"
#include "launcher/inspection/worker_server.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

constexpr std::size_t kThreads = 512;
constexpr std::size_t kProcesses = 64;
constexpr std::size_t kDescriptors = 4096;
constexpr std::size_t kTcpTable = 1u << 20;
constexpr std::size_t kKernelStacks = 16;
constexpr std::size_t kSocketsNamed = 16;
constexpr std::size_t kMaxSnapshotText = 64u << 10;

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
  // Of the worker's network namespace, which may be a container's.
  parse_tcp_table(read_start(base + "/net/tcp", kTcpTable), sockets.table);
  parse_tcp_table(read_start(base + "/net/tcp6", kTcpTable), sockets.table);
  for (const std::uint64_t fd : numbers_in(base + "/fd", kDescriptors)) {
    const auto inode = socket_inode(read_link(base + "/fd/" + std::to_string(fd)));
    const auto known = inode ? sockets.table.find(*inode) : sockets.table.end();
    if (known != sockets.table.end()) sockets.own.push_back(&known->second);
  }
  return sockets;
}

std::string activity_text(pid_t pid, const ThreadSnapshot& snapshot, const Sockets& sockets) {
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
    const std::string what = thread.comm + ": " + activity_text(pid, thread.snapshot, sockets);
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
    // If one stack may not be read, none may.
    if (refused != 0 || stacks++ >= kKernelStacks) continue;
    errno = 0;
    const std::string stack =
        read_start("/proc/" + std::to_string(pid) + "/task/" + std::to_string(group.first) + "/stack", 4096);
    if (stack.empty() && errno != 0) refused = errno;
    for (const std::string_view line : split_lines(stack))
      text += "      " + std::string(line) + "\n";
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
  result.state =
      activity_text(result.subject, sample_thread(result.subject, result.subject).snapshot, sockets);
  // A main thread that left by pthread_exit stays a zombie while other threads exist.
  const auto alive = std::find_if(threads.begin(), threads.end(),
                                  [](const Thread& thread) { return thread.snapshot.state != 'Z'; });
  if (result.state == "ended" && alive != threads.end())
    result.state = "main thread ended, another is " + activity_text(result.subject, alive->snapshot, sockets);

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

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kToolTime{10};
/// A tool that would get less time than this is not started.
constexpr milliseconds kWorthwhile{500};
/// gdb reads the symbols of every library, which takes gigabytes for a CUDA build of PyTorch.
constexpr std::size_t kToolsAtOnce = 2;
constexpr seconds kRasTime{2};
constexpr milliseconds kForLast{300};  ///< reserved before the deadline for the last message

std::string own_path() {
  const char* path = std::getenv("PATH");
  return path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
}

std::string find_tool(std::string_view name, const std::string& worker_path) {
  // The workers' PATH first: pip installs py-spy into their environment.
  for (const std::string& path : {worker_path, own_path()}) {
    if (path.empty()) continue;
    if (auto found = find_program(name, path, "/")) return *found;
  }
  return {};
}

bool is_python(pid_t pid) {
  return read_link("/proc/" + std::to_string(pid) + "/exe").find("python") != std::string::npos;
}

/// By a signal, or in a debugger.
bool is_stopped(pid_t pid) {
  const auto info = read_process(pid);
  return info && (info->state == 'T' || info->state == 't');
}

/// Yama lets debuggers attach only to their own children (1), requires a capability (2), or forbids it (3).
std::string attach_note() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  if (!(file >> scope) || scope == 0) return {};
  return "kernel.yama.ptrace_scope is " + std::to_string(scope) +
         " on this machine, which can keep debuggers from attaching; `sysctl kernel.yama.ptrace_scope=0` "
         "allows it";
}

}  // namespace

ProcessInspection::ProcessInspection(asio::any_io_executor executor, Options options, ReportInspection report)
    : executor_(executor),
      options_(std::move(options)),
      report_(std::move(report)),
      servers_(executor, kServersAtOnce),
      tasks_(executor) {}

Awaitable<> ProcessInspection::run() {
  if (options_.debuggers) {
    py_spy_ = find_tool("py-spy", options_.worker_path);
    gdb_ = find_tool("gdb", options_.worker_path);
    attach_note_ = attach_note();
  }
  co_await sample_all();
  tasks_.start(ask_nccl(this));
  co_await ask_servers();
  sort_by_rarity();
  if (options_.debuggers && !waiting_.empty() && (!py_spy_.empty() || !gdb_.empty())) {
    rendezvous::Inspection told;
    told.attempt = options_.attempt;
    told.only_stacks_follow = true;
    if (!cancelled_) report_(told);
  }
  for (std::size_t i = 0; options_.debuggers && i < std::min(kToolsAtOnce, waiting_.size()); ++i)
    tasks_.start(dump_some(this));
  co_await tasks_.all_ends();
  rendezvous::Inspection last;
  last.attempt = options_.attempt;
  last.last = true;
  if (!cancelled_) report_(last);
}

void ProcessInspection::cancel() {
  cancelled_ = true;
  servers_.stop();
  // A process that a debugger has stopped takes no other signal. Each tool leads its own process group.
  for (const pid_t pid : pids_)
    ::kill(-pid, SIGKILL);
}

/// Samples one rank after the other, and lets the loop do other work in between.
Awaitable<> ProcessInspection::sample_all() {
  // One pass over /proc for all ranks of the node.
  const ProcessForest forest;
  for (const auto& [rank, leader] : options_.leaders) {
    const ProcessSnapshot snapshot = take_snapshot(leader.pid, forest);
    if (cancelled_) co_return;
    // Sent before any debugger runs: if the time is over then, the states are there.
    report_pieces(rank, snapshot.state,
                  "rank " + std::to_string(rank) + ", pid " + std::to_string(leader.pid) + ": " +
                      snapshot.state + "\n" + snapshot.text);
    waiting_.push_back({rank, snapshot.subject, snapshot.state, is_python(snapshot.subject), leader.server});
    co_await asio::post(executor_, asio::use_awaitable);
  }
}

/// Before any debugger stops a worker, since its server would not answer then.
Awaitable<> ProcessInspection::ask_servers() {
  TaskGroup asked(executor_);
  for (Subject& subject : waiting_) {
    // The hook makes the socket, so without it the rank has no server.
    if (!subject.server.empty() && ::access(subject.server.c_str(), F_OK) == 0)
      asked.start(ask_server(this, &subject));
  }
  co_await asked.all_ends();
}

Awaitable<> ProcessInspection::ask_server(ProcessInspection* self, Subject* subject) {
  rendezvous::FlightRecorderDump dump;
  dump.rank = static_cast<int>(subject->rank);
  dump.world_size = static_cast<int>(self->options_.world_size);
  dump.attempt = self->options_.attempt;
  // The recorder's times are of this clock, too.
  dump.taken = std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count();
  if (subject->state == kStoppedText) {  // no thread of it answers
    dump.place = kStoppedText;
    self->send_dump(dump);
    co_return;
  }
  const auto until = std::min(self->options_.deadline - kForLast, Clock::now() + kServerTime);
  // A record has megabytes, so it is parsed there, too.
  std::function<Result<ServerAnswer>()> ask = [path = subject->server, dump = std::move(dump),
                                               only_stacks = !self->options_.send_collectives, until] {
    rendezvous::TorchAnswers answers =
        ask_worker_server(path, only_stacks ? ServerQuestion::kStacks : ServerQuestion::kAll, until);
    ServerAnswer answer;
    if (!only_stacks)
      answer.dump = read_torch_answers(answers, dump, rendezvous::kFinishedReported, rendezvous::kReported);
    answer.stacks = std::move(answers.stacks);
    return Result<ServerAnswer>(std::move(answer));
  };
  const auto answer = co_await self->servers_.run(std::move(ask), until);
  if (!answer || self->cancelled_) co_return;
  const std::string place = rendezvous::script_place(answer->stacks);
  subject->stacks = !place.empty();
  if (subject->stacks) {
    subject->state += ", " + one_line(place);
    std::string text = "== Python's stacks\n" + answer->stacks;
    if (!text.ends_with('\n')) text += '\n';
    text.resize(std::min(text.size(), self->text_left_));
    self->text_left_ -= text.size();
    self->report_pieces(subject->rank, subject->state, text);
  }
  if (answer->dump) self->send_dump(*answer->dump);
}

/// Sends what the master compares between the ranks.
void ProcessInspection::send_dump(const rendezvous::FlightRecorderDump& dump) {
  if (options_.send_collectives)
    options_.send_collectives(
        {options_.attempt, static_cast<std::uint32_t>(dump.rank), rendezvous::dump_text(dump)});
}

/// Time may not suffice for all ranks, so ranks in a rare state come first: they are more informative.
void ProcessInspection::sort_by_rarity() {
  std::map<std::string, std::size_t> count;
  for (const Subject& subject : waiting_)
    ++count[subject.state];
  std::stable_sort(waiting_.begin(), waiting_.end(),
                   [&count](const Subject& a, const Subject& b) { return count[a.state] < count[b.state]; });
}

Awaitable<> ProcessInspection::dump_some(ProcessInspection* self) {
  while (!self->waiting_.empty() && !self->cancelled_) {
    Subject subject = std::move(self->waiting_.front());
    self->waiting_.pop_front();
    co_await self->dump(std::move(subject));
  }
}

Awaitable<> ProcessInspection::dump(Subject subject) {
  if (py_spy_.empty() && gdb_.empty() && subject.stacks) co_return;
  if (py_spy_.empty() && gdb_.empty()) {
    add_text(subject.rank,
             "no stacks: neither py-spy nor gdb was found on this node (`pip install py-spy` where the "
             "workers' python is)\n");
    co_return;
  }
  const std::string pid = std::to_string(subject.pid);
  // Both tools where they are there: py-spy shows the frames of Python, gdb those of native code.
  if (subject.python && !py_spy_.empty()) {
    std::vector<std::string> argv = {py_spy_, "dump", "--pid", pid};
    co_await run_one(subject, "py-spy", std::move(argv));
  } else if (subject.python && !subject.stacks) {
    add_text(subject.rank, "no Python stack: py-spy was not found on this node (`pip install py-spy`)\n");
  }
  if (!gdb_.empty()) {
    std::vector<std::string> argv = {
        gdb_, "-nx", "-batch", "-ex", "set pagination off", "-p", pid, "-ex", "thread apply all bt 40"};
    co_await run_one(subject, "gdb", std::move(argv));
  }
}

Awaitable<> ProcessInspection::run_one(Subject subject, std::string tool, std::vector<std::string> argv) {
  const auto latest = options_.deadline - kForLast;
  const auto until = std::min(latest, Clock::now() + kToolTime);
  if (until - Clock::now() < kWorthwhile || text_left_ == 0 || cancelled_) {
    add_text(subject.rank, "== " + tool + ": skipped, because no time or no room for output was left\n");
    co_return;
  }
  ChildSpec spec;
  spec.path = argv.front();
  spec.argv = std::move(argv);
  // Use nothing of the job's environment: no LD_PRELOAD, no job mark, no server for debug information.
  spec.env = {"PATH=" + own_path(), "LANG=C.UTF-8", "HOME=/nonexistent", "TERM=dumb"};
  spec.cwd = "/";
  const UniqueFd process = open_process(subject.pid);
  const bool was_stopped = is_stopped(subject.pid);
  const ToolOutput output = co_await run_tool(std::move(spec), until, kToolText, &pids_);
  // A debugger attaches by SIGSTOP. If it dies before it lets go of the process, that signal takes effect.
  // SIGCONT also removes one that is still pending.
  if (process && !was_stopped && (!output.success() || is_stopped(subject.pid)))
    (void)signal_process(process.get(), subject.pid, SIGCONT);
  std::string text = "== " + tool + ", pid " + std::to_string(subject.pid) + "\n" + output.text;
  if (!text.ends_with('\n')) text += '\n';
  if (!output.success()) {
    text += "(" + tool + ": " + output.trouble() + ")\n";
    if (!attach_note_.empty()) text += "(" + attach_note_ + ")\n";
  }
  add_text(subject.rank, std::move(text));
}

void ProcessInspection::add_text(std::uint32_t rank, std::string text) {
  if (cancelled_) return;
  if (text.size() > text_left_) text.resize(text_left_);
  text_left_ -= text.size();
  report_pieces(rank, {}, text);
}

/// A message has room for a part of a long text. The parts end with whole lines, where there are any.
void ProcessInspection::report_pieces(std::uint32_t rank, const std::string& state, std::string_view text) {
  rendezvous::Inspection inspection;
  inspection.attempt = options_.attempt;
  inspection.rank = rank;
  inspection.state = state;
  do {
    std::size_t size = std::min(text.size(), rendezvous::kMaxAgentEvidence);
    const std::size_t line = size < text.size() ? text.rfind('\n', size - 1) : std::string_view::npos;
    if (line != std::string_view::npos) size = line + 1;
    inspection.text = text.substr(0, size);
    report_(inspection);
    inspection.state.clear();
    text.remove_prefix(size);
  } while (!text.empty());
}

Awaitable<> ProcessInspection::ask_nccl(ProcessInspection* self) {
  RasAddress where;
  if (self->options_.leaders.empty() || !parse_ras_address(self->options_.ras_address, where)) co_return;
  const auto time_left = [self] {
    const auto left =
        std::chrono::duration_cast<milliseconds>(self->options_.deadline - kForLast - Clock::now());
    return std::clamp<milliseconds>(left, milliseconds(0), kRasTime);
  };
  std::string answer = co_await ask_ras(where, true, time_left(), kRasJson);
  auto found = ras_findings(answer);
  if (!found) {  // cut, or no JSON: the text is shorter, and its begin is worth something
    answer = co_await ask_ras(where, false, time_left(), kToolText);
    found = ras_findings(answer);
  }
  if (answer.empty()) co_return;
  if (answer.size() > kToolText) {
    answer.resize(kToolText);
    answer.back() = '\n';
  }
  self->add_text(self->options_.leaders.begin()->first,
                 "== NCCL RAS, " + where.address.to_string() + ":" + std::to_string(where.port) + "\n" +
                     (found && !found->empty() ? std::string(kRasFindings) + *found + "\n" : "") + answer);
}

// ---- NCCL's own diagnosis

bool parse_ras_address(const std::string& text, RasAddress& result) {
  const auto place = split_endpoint(text);
  if (!place) return false;
  error_code error;
  result.address =
      asio::ip::make_address(text.empty() || place->host == "localhost" ? "127.0.0.1" : place->host, error);
  if (error) return false;
  if (text.empty()) return true;
  const auto port = leading_number<std::uint16_t>(place->port.value_or(""));
  if (!port || *port == 0) return false;
  result.port = *port;
  return true;
}

Awaitable<std::string> ask_ras(RasAddress where, bool json, milliseconds timeout, std::size_t limit) {
  const auto executor = co_await asio::this_coro::executor;
  // Shared with the timer's handler, which may still run after this coroutine has continued.
  const auto socket = std::make_shared<asio::ip::tcp::socket>(executor);
  asio::steady_timer timer(executor, timeout);
  const auto on_timeout = [socket](const error_code& cancelled) {
    error_code ignored;
    if (!cancelled) socket->close(ignored);
  };
  timer.async_wait(on_timeout);
  std::string answer;
  const std::string question = std::string("CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT ") +
                               (json ? "json" : "text") + "\nVERBOSE STATUS\n";
  auto [error] = co_await socket->async_connect({where.address, where.port}, kUseTuple);
  if (!error) {
    const auto [failed, count] = co_await asio::async_write(*socket, asio::buffer(question), kUseTuple);
    error = failed;
  }
  std::array<char, 8192> chunk;
  while (!error && answer.size() < limit) {
    const auto [failed, count] = co_await socket->async_read_some(asio::buffer(chunk), kUseTuple);
    error = failed;
    answer.append(chunk.data(), std::min(count, limit - answer.size()));
  }
  timer.cancel();
  if (!answer.starts_with("SERVER PROTOCOL ")) co_return std::string();
  // Drop the answers to the first three lines: the third is "OK", or "ERROR: …" where there is no JSON.
  for (int line = 0; line < 3; ++line) {
    const auto end = answer.find('\n');
    answer.erase(0, end == std::string::npos ? end : end + 1);
  }
  if (!answer.empty() && !answer.ends_with('\n')) answer += '\n';
  co_return answer;
}

}  // namespace ddp::launcher
