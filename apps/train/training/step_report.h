#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "apps/train/training/step_profile.h"

namespace ddp::train {

/// The result of one step; loss and norm are equal on all ranks (of a node, with --sync-every-inter).
struct StepReport {
  int epoch = 0;            ///< from 0
  int step = 0;             ///< in this epoch, from 1
  int steps = 0;            ///< in this epoch
  std::uint64_t total = 0;  ///< steps since the beginning of the training, including this one
  double loss = 0;          ///< mean over the ranks' batches
  double lr = 0;
  double norm = 0;         ///< of the gradient, with --clip-norm
  bool dropped = false;    ///< the gradient was not finite: nothing changed
  bool last = false;       ///< the nodes' average after this step failed: no step can follow
  std::size_t images = 0;  ///< of all ranks in this step
  StepTimes times{};
};

struct Accuracy {
  std::uint64_t correct = 0;
  std::uint64_t total = 0;
  double percent() const { return 100.0 * static_cast<double>(correct) / static_cast<double>(total); }
};

/// Receives the activity of this rank: the number of completed steps, the present phase (a static string),
/// and the loss of the last step, a nan before the first. It is called at every change and at every batch, so
/// it must be cheap.
using OnPhase = std::function<void(std::uint64_t step, const char* phase, double loss)>;

}  // namespace ddp::train
