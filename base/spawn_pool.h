#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/child_process.h"
#include "base/result.h"

namespace ddp {

/// Starts many children at once, and none on the caller's thread: `spawn` waits until the kernel has executed
/// the program, which a network disk may hold up for minutes. A child's death signal follows the thread that
/// made it, so the threads live as long as the pool, and the pool must live as long as its children.
class SpawnPool {
 public:
  /// One result for each spec, in order.
  using SpawnDone = std::function<void(std::vector<Result<ChildProcess>>)>;

  /// `threads` of them, made now; 0: everything happens in the caller, who then waits (sanitizers dislike
  /// fork beside threads).
  explicit SpawnPool(unsigned threads);
  /// Waits for the start of children that is under way.
  ~SpawnPool();
  SpawnPool(const SpawnPool&) = delete;
  SpawnPool& operator=(const SpawnPool&) = delete;

  /// Starts them, and calls `done` on a thread of the pool. Not to be called again before that. Errors as
  /// `spawn`, and kCancelled. What a spec borrows is used until then.
  void spawn_all(std::vector<ChildSpec> specs, SpawnDone done);
  /// Of the present ones those are not started any more that no thread has begun with: kCancelled.
  void cancel();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<ChildSpec> specs_;
  std::vector<std::optional<Result<ChildProcess>>> results_;
  SpawnDone done_;
  std::size_t next_ = 0;
  std::size_t finished_ = 0;
  bool cancelled_ = false;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

/// How many threads are worth it for so many children: a few, none in a build whose spawn forks.
unsigned spawn_threads(std::size_t children);

}  // namespace ddp
