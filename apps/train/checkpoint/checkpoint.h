#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/train/checkpoint/model_file.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/model/model.h"
#include "apps/train/schedule/schedule.h"
#include "base/result.h"

namespace ddp::train {

// A checkpoint is a directory step-00001234, which has this name only once it is complete:
//   model.safetensors       as --export writes it; running statistics averaged over the ranks
//   optimizer.safetensors   one number per parameter in each vector: velocity, or mean and square
//   state.json              CheckpointState, with the CRC-32 of all three

/// Everything except the vectors.
struct CheckpointState {
  std::string model, dtype, optimizer;
  int mlp_width = 0, mlp_depth = 0;  ///< 0: not known, or another model
  int world_size = 1;
  int batch_size = 0, accumulate = 1;
  std::int64_t seed = 0;
  std::uint64_t samples = 0;                               ///< number of training images
  std::uint32_t training_images = 0, training_labels = 0;  ///< DataSplit::checksums; 0: unknown
  TrainingPosition position;
  std::int64_t optimizer_steps = 0;
  /// Running statistics of each rank, in rank order, so that a training continues with the same bits.
  std::vector<double> running;
  std::uint32_t model_crc32 = 0, optimizer_crc32 = 0;  ///< of the files

  /// Returns how many samples of the epoch are used.
  std::uint64_t used() const;
};

std::string to_json(const CheckpointState& state);
/// Accepts only a state that a training can have written: a position in the epoch that its samples permit,
/// numbers in range, and no changed bit. The caller checks the number of running statistics. Errors begin
/// with `path`.
Result<CheckpointState> parse_checkpoint_state(const std::string& path, const std::string& text);

/// Returns the position for a training on `world_size` ranks. If a number that divides the samples differs, a
/// new segment begins after the used samples.
TrainingPosition go_on(const CheckpointState& state, int world_size, int batch_size, int accumulate);

std::string checkpoint_name(std::uint64_t step);
/// Returns the step in such a name; empty if it is none.
std::optional<std::uint64_t> checkpoint_step(const std::string& name);

/// Returns whether any of a checkpoint's three files exists, or cannot be checked: it may be damaged.
bool is_checkpoint(const std::string& path);
/// Returns the names of the checkpoints in a directory, including damaged ones, oldest first. Empty if there
/// is none, or no directory; a directory that cannot be read is an error.
Result<std::vector<std::string>> list_checkpoints(const std::string& directory);
/// Returns `path` itself if it is a checkpoint, else the last one in it. kUsage if there is none.
Result<std::string> find_checkpoint(const std::string& path);

/// A checkpoint in memory. Its files are complete, belong together, and hold finite numbers only. They may
/// not fit the training.
struct Checkpoint {
  std::string path;
  CheckpointState state;
  Safetensors model, optimizer;
};

/// Reads the state of the checkpoint at `path`, without its vectors. Errors begin with the path of
/// state.json.
Result<CheckpointState> read_checkpoint_state(const std::string& path);
/// Reads the other files. Errors begin with the path of the file that is missing, truncated, damaged, another
/// checkpoint's, or refused by the check of its header.
Result<Checkpoint> read_checkpoint(const std::string& path, CheckpointState state,
                                   const Safetensors::CheckHeader& check_model,
                                   const Safetensors::CheckHeader& check_optimizer);

/// Checks the file's header: kUsage unless it holds exactly `names`, each with `size` numbers.
Result<> check_optimizer(const Safetensors& file, std::size_t size, const std::vector<std::string>& names);

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
