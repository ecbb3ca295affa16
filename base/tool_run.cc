#include "base/tool_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "base/program.h"
#include "base/unique_fd.h"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

/// The time from SIGKILL to the end of a process that the kernel does not block.
constexpr std::chrono::seconds kKillTime{1};

/// The time in which the last output is read after the end of a tool. A process that it has left in the
/// background may hold the pipe for ever.
constexpr std::chrono::milliseconds kRestTime{500};

struct Running {
  asio::posix::stream_descriptor out;
  asio::posix::stream_descriptor end;
  asio::steady_timer timer;
  asio::steady_timer rest;
  ChildProcess child;
  bool late = false;
  bool done = false;  ///< all output is read
};

/// The handler may still run after the coroutine has continued, so it shares what it touches.
void kill_at(const std::shared_ptr<Running>& run, Clock::time_point when) {
  run->timer.expires_at(when);
  run->timer.async_wait([run](const error_code& cancelled) {
    if (cancelled) return;
    run->late = true;
    (void)run->child.send_group_signal(SIGKILL);
    error_code ignored;
    run->out.cancel(ignored);  // do not wait for other holders of the pipe
    run->end.cancel(ignored);
  });
}

/// Ends the reading some time after the end of the tool.
void read_until_end(const std::shared_ptr<Running>& run) {
  run->end.async_wait(asio::posix::stream_descriptor::wait_read, [run](const error_code& failed) {
    if (failed || run->done) return;
    run->rest.expires_after(kRestTime);
    run->rest.async_wait([run](const error_code& cancelled) {
      error_code ignored;
      if (!cancelled) run->out.cancel(ignored);
    });
  });
}

}  // namespace

Result<ChildSpec> own_child(std::vector<std::string> argv) {
  const char* path = std::getenv("PATH");
  auto program =
      find_program(argv[0], path != nullptr ? std::optional<std::string_view>(path) : std::nullopt);
  if (!program) return program.error();
  ChildSpec spec;
  spec.path = std::move(*program);
  spec.argv = std::move(argv);
  spec.env = own_environment();
  return spec;
}

std::string ToolOutput::trouble() const {
  if (!status) return status.error().text;
  if (status->success()) return {};
  return (status->kind == ExitStatus::Kind::kSignaled ? "it was " : "it ") + status->text();
}

Awaitable<ToolOutput> run_tool(ChildSpec spec, Clock::time_point deadline, std::size_t limit,
                               std::set<pid_t>* pids, ToolStop* stop) {
  ToolOutput result;
  if (stop != nullptr && stop->stopped) co_return result;
  const auto executor = co_await asio::this_coro::executor;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    result.status = system_error(errno, "pipe");
    co_return result;
  }
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  spec.out = writer.get();
  if (spec.err == kDevNull) spec.err = writer.get();
  spec.new_session = true;
  spec.death_signal = SIGKILL;
  auto child = spawn(spec);
  writer.reset();
  if (!child) {
    result.status = child.error();
    co_return result;
  }
  const auto run = std::make_shared<Running>(
      Running{asio::posix::stream_descriptor(executor, reader.release()),
              asio::posix::stream_descriptor(executor, ::fcntl(child->end_fd(), F_DUPFD_CLOEXEC, 0)),
              asio::steady_timer(executor), asio::steady_timer(executor), std::move(*child)});
  const pid_t pid = run->child.pid();
  if (pids != nullptr) pids->insert(pid);
  kill_at(run, deadline);
  read_until_end(run);
  if (stop != nullptr) stop->kill = [run] { kill_at(run, Clock::now()); };
  std::array<char, 8192> chunk;
  for (bool open = true; open && !run->late;) {
    const auto [error, count] = co_await run->out.async_read_some(asio::buffer(chunk), kUseTuple);
    open = !error && count > 0;
    // Output beyond the limit is read, too, because a tool that blocks in a write would never end.
    if (open) result.text.append(chunk.data(), std::min(count, limit - std::min(limit, result.text.size())));
    if (stop != nullptr && stop->at_limit && result.text.size() >= limit) {
      run->late = true;
      (void)run->child.send_group_signal(SIGKILL);
    }
  }
  run->done = true;
  run->rest.cancel();
  if (!run->late) co_await until_readable(run->end);
  if (stop != nullptr) stop->kill = nullptr;
  // A process in state D does not die of SIGKILL. It gets a second more and is then left to the kernel.
  const bool late = std::exchange(run->late, false);
  if (late) {
    kill_at(run, Clock::now() + kKillTime);
    co_await until_readable(run->end);
  }
  run->timer.cancel();
  const auto status = run->child.try_wait();
  if (late) {
    result.status = Error{ErrorCode::kTimeout, "it did not end in time and was killed"};
  } else if (status) {
    result.status = *status;
  } else {
    result.status = Error{ErrorCode::kSystem, "it could not be waited for"};
  }
  result.cut = result.text.size() >= limit;
  if (result.cut) result.text += "\n(cut here)\n";
  // The destructor would wait for a child that the kernel still blocks.
  if (run->child.running()) run->child.abandon();
  if (pids != nullptr) pids->erase(pid);
  co_return result;
}

ToolOutput wait_for_tool(ChildSpec spec, Clock::time_point deadline, std::size_t limit) {
  asio::io_context loop(1);
  std::optional<ToolOutput> output;
  ToolStop stop;
  stop.at_limit = true;
  asio::co_spawn(loop, run_tool(std::move(spec), deadline, limit, nullptr, &stop),
                 [&output](const std::exception_ptr& broken, ToolOutput result) {
                   if (broken) std::terminate();  // internal error: no exception crosses an await here
                   output = std::move(result);
                 });
  loop.run();
  DDP_REQUIRE(output.has_value(), limit);
  return std::move(*output);
}

}  // namespace ddp
