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

/// Starts many children in parallel, away from the caller's thread: `spawn` waits until the kernel has
/// executed the program, which a network disk may delay for minutes. A child's death signal follows the
/// thread that created the child. So the threads live as long as the pool, and the pool must outlive its
/// children.
class SpawnPool {
 public:
  /// One result for each spec, in order.
  using SpawnDone = std::function<void(std::vector<Result<ChildProcess>>)>;

  /// Starts `threads` threads, or as many as the limit of processes allows. With 0, the caller's thread
  /// starts all children and waits for them (sanitizers do not support fork beside threads).
  explicit SpawnPool(unsigned threads);
  /// Waits until children that are being started have started.
  ~SpawnPool();
  SpawnPool(const SpawnPool&) = delete;
  SpawnPool& operator=(const SpawnPool&) = delete;

  /// Starts the children and calls `done` on a thread of the pool. Do not call it again before that. Errors
  /// as in `spawn`, and kCancelled. Everything that a spec borrows is used until `done` is called.
  void spawn_all(std::vector<ChildSpec> specs, SpawnDone done);
  /// Children of the current call that no thread has begun to start are not started: kCancelled.
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

/// Returns how many threads are useful for `children`: a few, or none in a build where spawn forks.
unsigned spawn_threads(std::size_t children);

}  // namespace ddp
