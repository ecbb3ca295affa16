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
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

/// The content of a checkpoint, in its own memory. The large vectors are not zeroed first.
template <class T>
struct CheckpointContent {
  CheckpointState state;
  AlignedBuffer<T> parameters;
  std::vector<T> running;
  std::int64_t batches = 0;  ///< batches in the running statistics
  struct StateVector {
    std::string name;
    AlignedBuffer<T> values;  ///< one for each parameter; more are not written
  };
  std::vector<StateVector> optimizer;
};

/// Writes checkpoints on its own thread, on rank 0 only. A failure (a full disk) leaves the training alone
/// and the last good checkpoint in place. It is reported once, until a checkpoint succeeds again.
template <class T>
class CheckpointWriter {
 public:
  struct Config {
    std::string directory;
    int keep = 3;
  };
  /// `say` is called from the writer's thread. `model` only gives the names of its tensors.
  CheckpointWriter(Config config, const Model<T>& model, std::function<void(const std::string&)> say);
  /// Completes a checkpoint that is being written.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Returns at once unless the previous checkpoint is still being written.
  void write(CheckpointContent<T> content);
  /// Returns whether nothing is being written; waits up to `longest` for that.
  bool idle_within(std::chrono::milliseconds longest);
  /// Waits until nothing is being written; returns the outcome of the last checkpoint.
  Result<> wait();

 private:
  void serve();
  Result<> write_checkpoint(const CheckpointContent<T>& content);
  Result<> write_files(const CheckpointContent<T>& content, const std::string& folder);
  Result<> publish(const std::string& folder, const std::string& name);
  std::string unfinished(const std::string& name) const {
    return config_.directory + "/.tmp-" + nonce_ + "-" + name;
  }
  /// Returns the temporary name of a checkpoint that is to be removed.
  std::string aside(const std::string& name) const { return unfinished("old-" + name); }
  /// Returns the checkpoints up to `step` that have a state.json. Later ones are damaged, or another
  /// training's.
  std::vector<std::string> checkpoints_until(std::uint64_t step) const;
  /// Removes the checkpoints before the last ones up to `step`, which was just written.
  void remove_old(std::uint64_t step);
  void report(std::uint64_t step, const Result<>& done);

  Config config_;
  std::string nonce_;  ///< unique to this writer
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
