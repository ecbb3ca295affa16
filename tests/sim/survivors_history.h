#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "apps/train/schedule/sampler.h"

namespace ddp::sim {

/// What a rank holds of the training: `hash` stands for weights and optimizer.
struct TrainingState {
  std::uint64_t hash = 0;
  train::TrainingPosition position;
  int world_size = 0;  ///< that divides the position's segment
};

/// All steps that any attempt ever completed, as a tree: each step's state follows on one other. The training
/// is the line from its last state back to the beginning; what is beside it counts for nothing.
class TrainingHistory {
 public:
  TrainingHistory(std::uint64_t samples, int batch_size, std::int64_t seed)
      : samples_(samples), batch_size_(batch_size), seed_(seed) {}

  /// Of a new training, equal on all ranks.
  static TrainingState beginning();
  /// The samples of `rank` in the step that follows on `state`; they are what it brings to the sum.
  std::vector<std::uint32_t> samples_of(const TrainingState& state, int rank);
  /// The state after a step over all ranks' samples, in rank order.
  TrainingState step(const TrainingState& before, const std::vector<std::vector<std::uint32_t>>& samples);
  /// The same state for another number of ranks.
  TrainingState resplit(TrainingState state, int world_size) const;

  /// Whether on the line that ends with `hash` each epoch up to `epochs` has used each sample once, but for
  /// padding; nothing: it has.
  std::optional<std::string> wrong_with(std::uint64_t hash, std::int64_t epochs) const;
  std::uint64_t steps() const { return steps_; }

 private:
  struct Step {
    std::uint64_t before = 0;
    train::TrainingPosition at;
    int world_size = 0;
    std::vector<std::uint32_t> samples;
  };
  std::uint64_t steps_in_segment(const TrainingState& state) const;

  std::uint64_t samples_;
  int batch_size_;
  std::int64_t seed_;
  std::unordered_map<std::int64_t, std::vector<std::uint32_t>>
      orders_;                                    ///< key: epoch, begin, world and rank
  std::unordered_map<std::uint64_t, Step> tree_;  ///< by the hash of the state after it
  std::uint64_t steps_ = 0;
};

}  // namespace ddp::sim
