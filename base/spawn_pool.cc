#include "base/spawn_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace ddp {
namespace {

/// Minimum number of children for which several threads are used.
constexpr std::size_t kMany = 6;

}  // namespace

SpawnPool::SpawnPool(unsigned threads) {
  try {
    for (unsigned i = 0; i < threads; ++i)
      threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // The limit of processes is reached. The threads that run do the work, or the caller's thread.
  }
}

SpawnPool::~SpawnPool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    wake_.notify_all();
  }
  for (std::thread& thread : threads_)
    thread.join();
}

void SpawnPool::spawn_all(std::vector<ChildSpec> specs, SpawnDone done) {
  if (threads_.empty() || specs.empty()) {
    std::vector<Result<ChildProcess>> results;
    for (const ChildSpec& spec : specs)
      results.push_back(spawn(spec));
    return done(std::move(results));
  }
  const std::lock_guard lock(mutex_);
  specs_ = std::move(specs);
  done_ = std::move(done);
  results_.clear();
  results_.resize(specs_.size());
  next_ = 0;
  finished_ = 0;
  cancelled_ = false;
  wake_.notify_all();
}

void SpawnPool::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

void SpawnPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || next_ < specs_.size(); });
    if (ending_) return;
    const std::size_t mine = next_++;
    const ChildSpec& spec = specs_[mine];
    if (cancelled_) {
      results_[mine].emplace(Error{ErrorCode::kCancelled, "start " + spec.path + ": cancelled", 0});
    } else {
      lock.unlock();
      Result<ChildProcess> result = spawn(spec);
      lock.lock();
      results_[mine].emplace(std::move(result));
    }
    if (++finished_ < specs_.size()) continue;
    std::vector<Result<ChildProcess>> results;
    for (auto& result : results_)
      results.push_back(std::move(*result));
    const SpawnDone done = std::exchange(done_, nullptr);
    specs_.clear();
    next_ = 0;
    lock.unlock();
    done(std::move(results));
    lock.lock();
  }
}

unsigned spawn_threads(std::size_t children) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  (void)children;
  return 0;
#else
  return children < kMany ? 1u : std::clamp(std::thread::hardware_concurrency() + 2, 2u, 8u);
#endif
}

}  // namespace ddp
