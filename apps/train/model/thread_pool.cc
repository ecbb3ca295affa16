#include "apps/train/model/thread_pool.h"

namespace ddp::train {

ThreadPool::ThreadPool(int threads) {
  for (int worker = 1; worker < threads; ++worker)
    workers_.emplace_back(&ThreadPool::serve, this, worker);
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& worker : workers_)
    worker.join();
}

void ThreadPool::run(int chunks, const ChunkWork& work) {
  if (workers_.empty() || chunks == 1) {
    for (int chunk = 0; chunk < chunks; ++chunk)
      work(chunk, 0);
    return;
  }
  std::unique_lock lock(mutex_);
  work_ = &work;
  chunks_ = chunks;
  next_ = 0;
  begin_.notify_all();
  take_chunks(lock, 0);
  end_.wait(lock, [this] { return running_ == 0; });
  work_ = nullptr;
}

void ThreadPool::take_chunks(std::unique_lock<std::mutex>& lock, int worker) {
  ++running_;
  while (next_ < chunks_) {
    const int chunk = next_++;
    const ChunkWork& work = *work_;
    lock.unlock();
    work(chunk, worker);
    lock.lock();
  }
  --running_;
}

void ThreadPool::serve(int worker) {
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [this] { return stop_ || (work_ != nullptr && next_ < chunks_); });
    if (stop_) return;
    take_chunks(lock, worker);
    if (running_ == 0) end_.notify_one();
  }
}

}  // namespace ddp::train
