#include "base/blocking_calls.h"

#include <deque>
#include <map>
#include <mutex>

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

}  // namespace ddp
