#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/training_position.h"
#include "base/result.h"

namespace ddp::train {

// A checkpoint is a directory step-00001234 that is complete as soon as it has this name:
//   model.safetensors                    as --export writes it; running statistics averaged over the ranks
//   optim-00000-of-00001.safetensors     one file per part of the flat vectors: velocity, or mean and square;
//                                        the part's begin, end and total in the metadata
//   state.json                           CheckpointState

/// All that is not a vector.
struct CheckpointState {
  std::string model, dtype, optimizer;
  int world_size = 1;
  int batch_size = 0, accumulate = 1;
  std::int64_t seed = 0;
  std::uint64_t samples = 0;  ///< of the training data
  TrainingPosition position;
  std::int64_t optimizer_steps = 0;
  /// Of each rank, in rank order, as they were: that a training goes on with the same bits.
  std::vector<double> running;

  /// Samples of the epoch that are used up.
  std::uint64_t used() const;
};

std::string to_json(const CheckpointState& state);
/// Only what a training can have written: a position in the epoch that its samples have, numbers that fit.
/// (How many running statistics a model has the caller knows.) Errors begin with `path`.
Result<CheckpointState> parse_checkpoint_state(const std::string& path, const std::string& text);

/// The position for a training on `world_size` ranks: where anything that divides samples differs, a new
/// segment begins after what was used.
TrainingPosition go_on(const CheckpointState& state, int world_size, int batch_size, int accumulate);

std::string checkpoint_name(std::uint64_t step);
/// Of such a name; nothing where it is none.
std::optional<std::uint64_t> checkpoint_step(const std::string& name);
std::string optimizer_file_name(int part, int parts);

/// Names of the complete checkpoints in a directory (those with a state.json), oldest first. Empty when there
/// is none, or no directory.
std::vector<std::string> list_checkpoints(const std::string& directory);
/// `path` itself if it is a checkpoint, else the last one in it. kUsage when there is none.
Result<std::string> find_checkpoint(const std::string& path);

/// A whole optimizer's vectors, by name, whatever the number of parts that the checkpoint has: exactly
/// `names`, and each number once.
Result<std::map<std::string, std::vector<double>>> read_optimizer(const std::string& checkpoint,
                                                                  std::size_t total,
                                                                  const std::vector<std::string>& names);

}  // namespace ddp::train
