#include "base/blocking_calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/files.h"
#include "base/program.h"
#include "base/unique_fd.h"

namespace ddp {

/// One caller's wait. Loop thread only.
struct BlockingCalls::Wait {
  explicit Wait(const asio::any_io_executor& loop) : over(loop, Deadline::max()) {}
  bool done = false;
  asio::steady_timer over;  ///< never expires; cancelled when `done` is set, at the deadline, and by stop()
};

/// State shared by the threads and the loop.
struct BlockingCalls::Shared {
  struct Task {
    std::uint64_t id;
    std::function<void()> run;
  };
  explicit Shared(asio::any_io_executor executor) : loop(std::move(executor)) {}

  std::mutex mutex;  ///< guards the next four members
  asio::any_io_executor loop;
  bool open = true;  ///< false: the loop may be gone
  int threads = 0;
  std::deque<Task> queue;

  std::map<std::uint64_t, std::shared_ptr<Wait>> waits;  ///< loop thread only
};

BlockingCalls::BlockingCalls(asio::any_io_executor loop, int most_threads)
    : loop_(loop), most_threads_(most_threads), shared_(std::make_shared<Shared>(loop)) {}

BlockingCalls::~BlockingCalls() {
  // A call that hangs cannot be ended. Its thread shares this state, and finds that nobody waits.
  shared_->waits.clear();
  const std::lock_guard lock(shared_->mutex);
  shared_->open = false;
  shared_->loop = {};
  shared_->queue.clear();
}

void BlockingCalls::work(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (shared->open && !shared->queue.empty()) {
    const Shared::Task task = std::move(shared->queue.front());
    shared->queue.pop_front();
    lock.unlock();
    task.run();
    lock.lock();
    if (!shared->open) break;
    asio::post(shared->loop, [shared, id = task.id] {
      const auto wait = shared->waits.find(id);
      if (wait == shared->waits.end()) return;  // the caller has stopped waiting
      wait->second->done = true;
      wait->second->over.cancel();
      shared->waits.erase(wait);
    });
  }
  --shared->threads;
}

Result<> BlockingCalls::enqueue(std::uint64_t id, std::function<void()> task) {
  const std::lock_guard lock(shared_->mutex);
  shared_->queue.push_back({id, std::move(task)});
  if (shared_->threads >= most_threads_) return {};
  const Result<> started = start_detached([shared = shared_] { work(shared); });
  if (started) ++shared_->threads;
  // Without a new thread one of those that run takes the task later. Only without any it would wait for ever.
  if (shared_->threads > 0) return {};
  shared_->queue.clear();
  return started;
}

Awaitable<Result<>> BlockingCalls::run_task(std::function<void()> task, Deadline deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  const std::uint64_t id = ++last_id_;
  const auto wait = std::make_shared<Wait>(loop_);
  shared_->waits[id] = wait;
  const Result<> queued = enqueue(id, std::move(task));
  if (!queued) {
    shared_->waits.erase(id);
    co_return queued.error();
  }
  asio::steady_timer limit(loop_, deadline);
  limit.async_wait([wait](const error_code& cancelled) {
    if (!cancelled) wait->over.cancel();
  });
  while (!wait->done) {
    co_await wait->over.async_wait(kUseTuple);
    const asio::cancellation_state state = co_await asio::this_coro::cancellation_state;
    const bool cancelled = stopped_ || state.cancelled() != asio::cancellation_type::none;
    if (cancelled && !wait->done) co_return Error{ErrorCode::kCancelled, "cancelled", 0};
    if (!wait->done && std::chrono::steady_clock::now() >= deadline)
      co_return Error{ErrorCode::kTimeout, "a deadline passed", 0};
  }
  co_return Result<>();
}

void BlockingCalls::stop() {
  stopped_ = true;
  for (const auto& [id, wait] : shared_->waits)
    wait->over.cancel();
}

Awaitable<std::vector<Result<ChildProcess>>> spawn_off_loop(asio::any_io_executor loop, SpawnPool* pool,
                                                            std::vector<ChildSpec> specs) {
  using Results = std::vector<Result<ChildProcess>>;
  const auto results = std::make_shared<std::optional<Results>>();
  const auto over = std::make_shared<asio::steady_timer>(loop, std::chrono::steady_clock::time_point::max());
  SpawnPool::SpawnDone done = [loop, results, over](Results started) {
    asio::post(loop, [results, over, started = std::move(started)]() mutable {
      results->emplace(std::move(started));
      over->cancel();
    });
  };
  pool->spawn_all(std::move(specs), std::move(done));
  while (!*results)
    co_await over->async_wait(kUseTuple);
  co_return std::move(**results);
}

// ---- tools

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
  ChildSpec spec;
  spec.path =
      DDP_TRY(find_program(argv[0], path != nullptr ? std::optional<std::string_view>(path) : std::nullopt));
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
  auto pipe = make_pipe("pipe");
  if (!pipe) {
    result.status = pipe.error();
    co_return result;
  }
  auto& [reader, writer] = *pipe;
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
