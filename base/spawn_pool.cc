#include "base/spawn_pool.h"

#include <algorithm>
#include <utility>

namespace ddp {

SpawnPool::SpawnPool(unsigned threads) {
  for (unsigned i = 0; i < threads; ++i)
    threads_.emplace_back([this] { work(); });
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

std::vector<Result<ChildProcess>> SpawnPool::spawn_all(std::span<const ChildSpec> specs) {
  std::vector<Result<ChildProcess>> results;
  results.reserve(specs.size());
  if (threads_.empty()) {
    for (const ChildSpec& spec : specs)
      results.push_back(spawn(spec));
    return results;
  }
  std::unique_lock lock(mutex_);
  specs_ = specs;
  results_.clear();
  results_.resize(specs.size());
  next_ = 0;
  finished_ = 0;
  wake_.notify_all();
  done_.wait(lock, [this] { return finished_ == specs_.size(); });
  specs_ = {};
  for (auto& result : results_)
    results.push_back(std::move(*result));
  return results;
}

void SpawnPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || next_ < specs_.size(); });
    if (ending_) return;
    const std::size_t mine = next_++;
    const ChildSpec& spec = specs_[mine];
    lock.unlock();
    Result<ChildProcess> result = spawn(spec);
    lock.lock();
    results_[mine].emplace(std::move(result));
    if (++finished_ == specs_.size()) done_.notify_one();
  }
}

unsigned spawn_threads() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;
#else
  return std::clamp(std::thread::hardware_concurrency() + 2, 2u, 8u);
#endif
}

}  // namespace ddp
