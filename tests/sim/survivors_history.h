#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "apps/train/schedule/schedule.h"

namespace ddp::sim {

/// A rank's state of the training: `hash` stands for weights and optimizer.
struct TrainingState {
  std::uint64_t hash = 0;
  train::TrainingPosition position;
  int world_size = 0;  ///< divides the position's segment
};

/// All steps that any attempt ever completed, as a tree: each step's state follows one other. The training is
/// the line from its last state back to the beginning; other branches do not count.
class TrainingHistory {
 public:
  TrainingHistory(std::uint64_t samples, int batch_size, std::int64_t seed)
      : samples_(samples), batch_size_(batch_size), seed_(seed) {}

  /// Returns the state of a new training, which is equal on all ranks.
  static TrainingState beginning();
  /// Returns the samples of `rank` in the step that follows `state`: the rank's contribution to the sum.
  std::vector<std::uint32_t> samples_of(const TrainingState& state, int rank);
  /// Returns the state after a step over all ranks' samples, in rank order.
  TrainingState step(const TrainingState& before, const std::vector<std::vector<std::uint32_t>>& samples);
  /// Returns the same state for another number of ranks.
  TrainingState resplit(TrainingState state, int world_size) const;

  /// Checks that the line that ends with `hash` has used each sample once in each epoch up to `epochs`,
  /// except for padding. Returns nullopt if it has.
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
      orders_;                                    ///< by epoch, segment start, world size and rank
  std::unordered_map<std::uint64_t, Step> tree_;  ///< by the hash of the state after it
  std::uint64_t steps_ = 0;
};

}  // namespace ddp::sim
