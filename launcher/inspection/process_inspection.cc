#include "launcher/inspection/process_inspection.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include "base/find_program.h"
#include "launcher/inspection/process_snapshot.h"
#include "launcher/inspection/tool_run.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
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
  for (const std::string& path : {worker_path, own_path()}) {
    if (path.empty()) continue;
    if (auto found = find_program(name, path, "/")) return *found;
  }
  return {};
}

bool is_python(pid_t pid) {
  std::array<char, 512> target;
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  return size > 0 && std::string_view(target.data(), static_cast<std::size_t>(size)).find("python") !=
                         std::string_view::npos;
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
    : executor_(executor), options_(std::move(options)), report_(std::move(report)), tasks_(executor) {}

Awaitable<> ProcessInspection::run() {
  py_spy_ = find_tool("py-spy", options_.worker_path);
  gdb_ = find_tool("gdb", options_.worker_path);
  attach_note_ = attach_note();
  co_await sample_all();
  sort_by_rarity();
  for (std::size_t i = 0; i < std::min(kToolsAtOnce, waiting_.size()); ++i)
    tasks_.start(dump_some(this));
  tasks_.start(ask_nccl(this));
  co_await tasks_.all_ends();
  rendezvous::Inspection last;
  last.attempt = options_.attempt;
  last.last = true;
  if (!cancelled_) report_(last);
}

void ProcessInspection::cancel() {
  cancelled_ = true;
  // A process that a debugger has stopped takes no other signal. Each tool leads its own process group.
  for (const pid_t pid : pids_)
    ::kill(-pid, SIGKILL);
}

/// Samples one rank after the other, and lets the loop do other work in between.
Awaitable<> ProcessInspection::sample_all() {
  const ProcessForest forest;
  for (const auto& [rank, leader] : options_.leaders) {
    const ProcessSnapshot snapshot = take_snapshot(leader, forest);
    if (cancelled_) co_return;
    report_pieces(rank, snapshot.state,
                  "rank " + std::to_string(rank) + ", pid " + std::to_string(leader) + ": " + snapshot.state +
                      "\n" + snapshot.text);
    waiting_.push_back({rank, snapshot.subject, snapshot.state, is_python(snapshot.subject)});
    co_await asio::post(executor_, asio::use_awaitable);
  }
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
  if (py_spy_.empty() && gdb_.empty()) {
    add_text(subject.rank,
             "no stacks: neither py-spy nor gdb was found on this node (`pip install py-spy` where the "
             "workers' python is)\n");
    co_return;
  }
  const std::string pid = std::to_string(subject.pid);
  if (subject.python && !py_spy_.empty()) {
    std::vector<std::string> argv = {py_spy_, "dump", "--pid", pid};
    co_await run_one(subject, "py-spy", std::move(argv));
  } else if (subject.python) {
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
  const ToolOutput output = co_await run_tool(std::move(spec), until, kToolText, &pids_);
  std::string text = "== " + tool + ", pid " + std::to_string(subject.pid) + "\n" + output.text;
  if (!text.ends_with('\n')) text += '\n';
  if (!output.success) {
    text += "(" + tool + ": " + output.trouble + ")\n";
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
  const std::string answer = co_await ask_ras(where, kRasTime, kToolText);
  if (answer.empty()) co_return;
  self->add_text(self->options_.leaders.begin()->first, "== NCCL RAS, " + where.address.to_string() + ":" +
                                                            std::to_string(where.port) + "\n" + answer);
}

// ---- NCCL's own diagnosis

bool parse_ras_address(const std::string& text, RasAddress& result) {
  const auto colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (text.empty() || host == "localhost") host = "127.0.0.1";
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  error_code error;
  result.address = asio::ip::make_address(host, error);
  if (error) return false;
  if (text.empty()) return true;
  const int port = colon == std::string::npos ? 0 : std::atoi(text.c_str() + colon + 1);
  if (port <= 0 || port > 65'535) return false;
  result.port = static_cast<std::uint16_t>(port);
  return true;
}

Awaitable<std::string> ask_ras(RasAddress where, milliseconds timeout, std::size_t limit) {
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
  constexpr std::string_view kQuestion = "CLIENT PROTOCOL 2\nTIMEOUT 1\nVERBOSE STATUS\n";
  auto [error] = co_await socket->async_connect({where.address, where.port}, kUseTuple);
  if (!error) {
    const auto [failed, count] = co_await asio::async_write(*socket, asio::buffer(kQuestion), kUseTuple);
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
  // Drop the answers to the first two lines.
  for (int line = 0; line < 2; ++line) {
    const auto end = answer.find('\n');
    answer.erase(0, end == std::string::npos ? end : end + 1);
  }
  if (!answer.empty() && !answer.ends_with('\n')) answer += '\n';
  co_return answer;
}

}  // namespace ddp::launcher
