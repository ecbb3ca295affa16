#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/child_process.h"
#include "base/result.h"

namespace ddp {

/// Starts many children at once: `spawn` waits until the kernel has executed the program, so one after the
/// other leaves the other CPUs idle. A child's death signal follows the thread that made it, so the threads
/// live as long as the pool, and the pool must live as long as its children.
class SpawnPool {
 public:
  /// `threads` of them, made now; 0: everything happens in the caller (sanitizers dislike fork beside
  /// threads).
  explicit SpawnPool(unsigned threads);
  ~SpawnPool();
  SpawnPool(const SpawnPool&) = delete;
  SpawnPool& operator=(const SpawnPool&) = delete;

  /// One result for each spec, in order; blocks until all are there. Errors as `spawn`.
  std::vector<Result<ChildProcess>> spawn_all(std::span<const ChildSpec> specs);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::span<const ChildSpec> specs_;
  std::vector<std::optional<Result<ChildProcess>>> results_;
  std::size_t next_ = 0;
  std::size_t finished_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

/// How many threads are worth it here: a few, none in a build whose spawn forks.
unsigned spawn_threads();

}  // namespace ddp
