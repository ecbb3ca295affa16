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

#include "apps/train/checkpoint/checkpoint.h"
#include "apps/train/checkpoint/safetensors.h"
#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

/// What is put into a checkpoint, in memory of its own.
template <class T>
struct CheckpointContent {
  CheckpointState state;
  std::vector<T> parameters, running;
  std::int64_t batches = 0;  ///< that the running statistics have seen
  struct StateVector {
    std::string name;
    std::vector<T> values;
  };
  std::vector<StateVector> optimizer;
};

/// Writes checkpoints on a thread of its own, on rank 0 only. A failure (a full disk) leaves training alone
/// and the last good checkpoint in place; it is said once, until one succeeds again.
template <class T>
class CheckpointWriter {
 public:
  struct Config {
    std::string directory;
    int keep = 3;
  };
  /// `say` is called from the writer's thread. `model` is asked for its tensors' names only.
  CheckpointWriter(Config config, const Model<T>& model, std::function<void(const std::string&)> say);
  /// Completes what is being written.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Returns at once unless the checkpoint before is still being written.
  void write(CheckpointContent<T> content);
  /// Whether nothing is being written, at the latest after `longest`.
  bool idle_within(std::chrono::milliseconds longest);
  /// Until nothing is being written; the outcome of the last one.
  Result<> wait();

 private:
  void serve();
  Result<> write_checkpoint(const CheckpointContent<T>& content);
  Result<> write_files(const CheckpointContent<T>& content, const std::string& folder);
  Result<> publish(const std::string& folder, const std::string& name);
  std::string unfinished(const std::string& name) const {
    return config_.directory + "/.tmp-" + nonce_ + "-" + name;
  }
  /// The name of a checkpoint that is to go.
  std::string aside(const std::string& name) const { return unfinished("old-" + name); }
  /// An error: the object's end has begun, or another rank has failed.
  Result<> pause(const std::string& awaited);
  /// Those with a state.json. Later ones are damaged, or another training's.
  std::vector<std::string> checkpoints_until(std::uint64_t step) const;
  /// Those before the last ones up to `step`, which was just written.
  void remove_old(std::uint64_t step);
  void report(std::uint64_t step, const Result<>& done);

  Config config_;
  std::string nonce_;  ///< of this writer alone
  const Model<T>& model_;
  std::function<void(const std::string&)> say_;
  bool failing_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CheckpointContent<T>> next_;
  bool busy_ = false;
  Result<> last_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ddp::train
