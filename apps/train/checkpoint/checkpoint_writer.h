#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/train/checkpoint.h"
#include "apps/train/model.h"
#include "apps/train/safetensors.h"
#include "base/result.h"

namespace ddp::train {

/// What one rank puts into a checkpoint, in memory of its own.
template <class T>
struct CheckpointPart {
  CheckpointState state;
  std::vector<T> parameters, running;  ///< rank 0's only
  struct Vector {
    std::string name;
    std::vector<T> values;
  };
  std::vector<Vector> optimizer;
  std::size_t begin = 0, end = 0, total = 0;  ///< of the optimizer's vectors; empty: another rank writes them
};

/// Writes checkpoints on a thread of its own. Rank 0 writes the model and gives the directory its name when
/// all parts are there; other ranks only write their part, where there are several, and for that need the
/// same directory. A failure (a full disk) leaves training alone and the last good checkpoint in place; it is
/// said once, until one succeeds again.
template <class T>
class CheckpointWriter {
 public:
  struct Config {
    std::string directory;
    std::string nonce;  ///< the same on all ranks, another one for each training
    int rank = 0;
    int parts = 1;
    int keep = 3;
    std::chrono::milliseconds part_timeout{60'000};
    std::vector<std::string> spared{};  ///< nonces of those whose unfinished checkpoints are under way
  };
  /// `say` is called from the writer's thread. `model` is asked for its tensors' names only.
  CheckpointWriter(Config config, const Model<T>& model, std::function<void(const std::string&)> say);
  /// Completes what is being written, but waits for no other rank: a training that ends before wait() has
  /// failed.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Returns at once unless the checkpoint before is still being written.
  void write(CheckpointPart<T> part);
  /// Whether nothing is being written, at the latest after `longest`.
  bool idle_within(std::chrono::milliseconds longest);
  /// Nothing is being written, and the last one could not be.
  bool failed();
  const std::string& nonce() const { return config_.nonce; }
  /// Ends the wait for other ranks, of which `failed_rank` could not write its part of the same checkpoint.
  void give_up(int failed_rank);
  /// Until nothing is being written; the outcome of the last one.
  Result<> wait();

 private:
  void serve();
  Result<> write_part(const CheckpointPart<T>& part);
  Result<> write_whole(const CheckpointPart<T>& part, const std::string& folder, const std::string& name);
  Result<> write_optimizer(const CheckpointPart<T>& part, const std::string& folder);
  Result<> await_parts(const std::string& folder);
  /// An error: the object's end has begun, or another rank has failed.
  Result<> pause(const std::string& awaited);
  /// Of those up to `step`, which was just written; later ones are another training's.
  void remove_old(std::uint64_t step);
  void report(const std::string& name, const Result<>& done);

  Config config_;
  const Model<T>& model_;
  std::function<void(const std::string&)> say_;
  bool failing_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CheckpointPart<T>> next_;
  bool busy_ = false;
  Result<> last_;
  bool stop_ = false;
  std::optional<int> failed_rank_;
  std::thread thread_;
};

}  // namespace ddp::train
