#pragma once

#include <cstdint>
#include <type_traits>

#include "apps/train/collectives/communicator.h"
#include "apps/train/options/options.h"
#include "apps/train/schedule/sampler.h"
#include "apps/train/training/step_report.h"
#include "apps/train/training/trainer.h"
#include "base/result.h"

namespace ddp::train {

/// What a training has done besides steps, on all ranks alike.
struct TrainingMarks {
  int world_size = 0;              ///< that divides the position's segment
  std::int64_t tested_epochs = 0;  ///< whose test is done
  std::uint64_t tested_step = 0;   ///< with which the last test was made; 0: none
  Accuracy accuracy{};             ///< its
  StepReport last{};               ///< of the last step; total 0: none
  double epoch_loss = 0;           ///< sum over the steps since the last test, without dropped ones
  int epoch_steps = 0;             ///< those
};
static_assert(std::is_trivially_copyable_v<TrainingMarks>);

/// Gives the training's state of rank `from` to all ranks, of which some may have none (`held` false: a new
/// process) or be a step behind. All ranks call it. Weights, optimizer, position and marks are then `from`'s
/// on all; a rank that is at the same step keeps its own running statistics, which have seen its own batches.
/// The position is that for the present number of ranks.
///
/// Nothing is changed before all of it is here: after an error the rank holds what it held. Errors besides
/// the communicator's: kProtocol when `from` holds nothing, kInternal when ranks of the same step hold
/// different weights, or other bits come than were sent.
template <class T>
Result<> share_state(const TrainOptions& options, Communicator& world, int from, bool held,
                     std::uint64_t samples, Trainer<T>& trainer, TrainingMarks& marks);

}  // namespace ddp::train
