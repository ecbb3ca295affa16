#pragma once

#include <cstdint>
#include <type_traits>

#include "apps/train/collectives/communicator.h"
#include "apps/train/options/options.h"
#include "apps/train/schedule/schedule.h"
#include "apps/train/training/step_report.h"
#include "apps/train/training/trainer.h"
#include "base/result.h"

namespace ddp::train {

/// Progress of a training besides its steps, equal on all ranks.
struct TrainingMarks {
  int world_size = 0;              ///< divides the position's segment
  std::int64_t tested_epochs = 0;  ///< epochs whose test is done
  std::uint64_t tested_step = 0;   ///< step of the last test; 0: none
  Accuracy accuracy{};             ///< result of the last test
  StepReport last{};               ///< the last step; total 0: none
  double epoch_loss = 0;           ///< sum over the steps since the last test, without dropped ones
  int epoch_steps = 0;             ///< number of these steps
};
static_assert(std::is_trivially_copyable_v<TrainingMarks>);

/// Gives the training's state of rank `from` to all ranks. Some may have no state (`held` false: a new
/// process) or be a step behind. All ranks call it. Afterwards weights, optimizer, position and marks are
/// `from`'s on all ranks. A rank at the same step keeps its own running statistics, which have seen its own
/// batches. The position is converted to the present number of ranks.
///
/// Nothing changes before the whole state has arrived: after an error the rank holds its former state. Errors
/// besides the communicator's: kProtocol when `from` holds nothing; kInternal when ranks of the same step
/// hold different weights, or the received bits differ from the sent ones.
template <class T>
Result<> share_state(const TrainOptions& options, Communicator& world, int from, bool held,
                     std::uint64_t samples, Trainer<T>& trainer, TrainingMarks& marks);

}  // namespace ddp::train
