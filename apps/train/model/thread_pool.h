#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ddp::train {

/// Divides work into chunks that the caller numbers. The assignment of chunks to threads is arbitrary. Work
/// whose result must not depend on the number of threads keeps its sums by chunk and adds them in order.
class ThreadPool {
 public:
  /// `threads` includes the calling thread and is at least 1. No thread is started for 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  using ChunkWork = std::function<void(int chunk, int worker)>;

  /// Calls work(0 … chunks - 1), each once; returns when all calls are done. `worker` is below threads(), and
  /// differs between simultaneous calls, so it can choose scratch memory. Exceptions end the program.
  void run(int chunks, const ChunkWork& work);
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

 private:
  void serve(int worker);
  void take_chunks(std::unique_lock<std::mutex>& lock, int worker);

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const ChunkWork* work_ = nullptr;
  int chunks_ = 0;
  int next_ = 0;
  int running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace ddp::train
