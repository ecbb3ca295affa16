#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/checkpoint/safetensors.h"
#include "apps/train/schedule/sampler.h"
#include "base/result.h"

namespace ddp::train {

// A checkpoint is a directory step-00001234 that is complete as soon as it has this name:
//   model.safetensors       as --export writes it; running statistics averaged over the ranks
//   optimizer.safetensors   one number per parameter in each vector: velocity, or mean and square
//   state.json              CheckpointState, with the CRC-32 of all three

/// All that is not a vector.
struct CheckpointState {
  std::string model, dtype, optimizer;
  int world_size = 1;
  int batch_size = 0, accumulate = 1;
  std::int64_t seed = 0;
  std::uint64_t samples = 0;                               ///< of the training data
  std::uint32_t training_images = 0, training_labels = 0;  ///< DataSplit::checksums; 0: not known
  TrainingPosition position;
  std::int64_t optimizer_steps = 0;
  /// Of each rank, in rank order, as they were: that a training goes on with the same bits.
  std::vector<double> running;
  std::uint32_t model_crc32 = 0, optimizer_crc32 = 0;  ///< of the files

  /// Samples of the epoch that are used up.
  std::uint64_t used() const;
};

std::string to_json(const CheckpointState& state);
/// Only what a training can have written: a position in the epoch that its samples have, numbers that fit,
/// and no bit another one. (How many running statistics a model has the caller knows.) Errors begin with
/// `path`.
Result<CheckpointState> parse_checkpoint_state(const std::string& path, const std::string& text);

/// The position for a training on `world_size` ranks: where anything that divides samples differs, a new
/// segment begins after what was used.
TrainingPosition go_on(const CheckpointState& state, int world_size, int batch_size, int accumulate);

std::string checkpoint_name(std::uint64_t step);
/// Of such a name; nothing where it is none.
std::optional<std::uint64_t> checkpoint_step(const std::string& name);

/// Whether any of a checkpoint's three files is there, or cannot be looked for: it may be damaged.
bool is_checkpoint(const std::string& path);
/// Names of the checkpoints in a directory, damaged ones too, oldest first. Empty when there is none, or no
/// directory; one that cannot be read is an error.
Result<std::vector<std::string>> list_checkpoints(const std::string& directory);
/// `path` itself if it is a checkpoint, else the last one in it. kUsage when there is none.
Result<std::string> find_checkpoint(const std::string& path);

/// A checkpoint in memory. Its files are whole, belong to one another, and hold finite numbers only; whether
/// they fit a training is not known.
struct Checkpoint {
  std::string path;
  CheckpointState state;
  Safetensors model, optimizer;
};

/// Of the checkpoint at `path`, without its vectors. Errors begin with the path of state.json.
Result<CheckpointState> read_checkpoint_state(const std::string& path);
/// The rest of it. Errors begin with the path of the file that is missing, cut, damaged, another
/// checkpoint's, or refused by the check of its header.
Result<Checkpoint> read_checkpoint(const std::string& path, CheckpointState state,
                                   const Safetensors::CheckHeader& check_model,
                                   const Safetensors::CheckHeader& check_optimizer);

/// By the file's header: kUsage unless it holds exactly `names`, each with `size` numbers.
Result<> check_optimizer(const Safetensors& file, std::size_t size, const std::vector<std::string>& names);

}  // namespace ddp::train
