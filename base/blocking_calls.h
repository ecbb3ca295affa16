#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/exit_status.h"
#include "base/program.h"
#include "base/result.h"

// What takes longer than the loop may wait: calls on threads of their own, and tools whose output is read.

namespace ddp {

/// Starts a thread that is never joined. `body` owns what it uses. Error: kSystem.
template <class Body>
Result<> start_detached(Body body) {
  DDP_TRY(start_thread(std::move(body))).detach();
  return {};
}

/// Runs `call` on a thread and waits for its result, at most for `time`, for a caller that cannot await. Only
/// for calls that take microseconds unless a disk hangs. Returns nothing if the time is up, or no thread can
/// be started; the call may still run, so it owns what it uses.
template <class T>
std::optional<T> run_briefly(std::function<T()> call, std::chrono::milliseconds time) {
  const auto promise = std::make_shared<std::promise<T>>();
  std::future<T> result = promise->get_future();
  if (!start_detached([promise, call = std::move(call)] { promise->set_value(call()); })) return {};
  if (result.wait_for(time) != std::future_status::ready) return {};
  return result.get();
}

/// Runs calls that may block for minutes (a dead disk, a silent name server) in order on its own threads. The
/// loop goes on meanwhile. The threads are never joined. Loop thread only; destroy it before the loop.
class BlockingCalls {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  BlockingCalls(asio::any_io_executor loop, int most_threads);
  ~BlockingCalls();
  BlockingCalls(const BlockingCalls&) = delete;
  BlockingCalls& operator=(const BlockingCalls&) = delete;

  /// Runs `call` on a thread and returns its result. Further errors: kTimeout at `deadline`; kCancelled when
  /// the awaiting task is cancelled or after stop(); kSystem when no thread can be started. After kTimeout or
  /// kCancelled the call may still run. So it must own what it uses, or share it only with later calls on a
  /// single thread.
  template <class T>
  Awaitable<Result<T>> run(std::function<Result<T>()> call, Deadline deadline) {
    co_await asio::this_coro::throw_if_cancelled(false);
    const auto outcome = std::make_shared<std::optional<Result<T>>>();
    std::function<void()> task = [outcome, call = std::move(call)] { outcome->emplace(call()); };
    const Result<> done = co_await run_task(std::move(task), deadline);
    if (!done) co_return done.error();
    co_return std::move(**outcome);
  }

  /// Ends all waits with kCancelled.
  void stop();

 private:
  struct Wait;
  struct Shared;
  static void work(const std::shared_ptr<Shared>& shared);
  Awaitable<Result<>> run_task(std::function<void()> task, Deadline deadline);
  Result<> enqueue(std::uint64_t id, std::function<void()> task);

  asio::any_io_executor loop_;
  const int most_threads_;
  std::shared_ptr<Shared> shared_;
  std::uint64_t last_id_ = 0;
  bool stopped_ = false;
};

/// Runs SpawnPool::spawn_all without blocking the loop. The caller keeps `pool`, and everything that the
/// specs borrow, until this returns. It can be ended early only by SpawnPool::cancel and by a kill of the
/// children that are being started.
Awaitable<std::vector<Result<ChildProcess>>> spawn_off_loop(asio::any_io_executor loop, SpawnPool* pool,
                                                            std::vector<ChildSpec> specs);

// ---- tools

/// The program argv[0], which is searched in this process's PATH, with this process's environment. Error:
/// kExec.
Result<ChildSpec> own_child(std::vector<std::string> argv);

/// The output of a tool, and how it ended.
struct ToolOutput {
  std::string text;  ///< stdout, and stderr unless ChildSpec::err had a descriptor
  bool cut = false;  ///< there was more than the limit; `text` ends with a note about it
  /// Errors: as `spawn`; kTimeout, it was killed at the deadline; kCancelled, it was not started.
  Result<ExitStatus> status = Error{ErrorCode::kCancelled, "it was not started"};

  bool success() const { return status && status->success(); }  ///< it exited 0
  std::string trouble() const;  ///< why it failed, such as "it exited 1"; else empty
};

/// Lets the owner end tools early: the running one, and those that would follow.
struct ToolStop {
  void stop() {
    stopped = true;
    if (kill) kill();
  }
  bool stopped = false;
  bool at_limit = false;       ///< a tool that prints more than the limit is killed, since it may never end
  std::function<void()> kill;  ///< set by run_tool while a tool runs
};

/// Runs `spec` (out is set here, as is err where it is kDevNull) until it ends or until `deadline`, when its
/// process group is killed. Reads all of its output and keeps the first `limit` bytes. `pids`, if given,
/// contains the child's pid while it runs, so that no other component reaps it. `stop`, if given, ends the
/// tool as the deadline would. Loop thread; the caller keeps `pids` and `stop` alive.
Awaitable<ToolOutput> run_tool(ChildSpec spec, std::chrono::steady_clock::time_point deadline,
                               std::size_t limit, std::set<pid_t>* pids = nullptr, ToolStop* stop = nullptr);

/// As run_tool with ToolStop::at_limit, for a thread without a loop: waits for the end. Thread-safe.
ToolOutput wait_for_tool(ChildSpec spec, std::chrono::steady_clock::time_point deadline, std::size_t limit);

}  // namespace ddp
