#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "apps/train/data/dataset.h"
#include "apps/train/options/options.h"
#include "apps/train/training/step_report.h"
#include "apps/train/training/trainer.h"
#include "base/result.h"

namespace ddp::train {

/// Whom a training is made with, until it is complete or a rank is lost.
struct TrainingAttempt {
  Communicators communicators;
  /// The rank whose state the training goes on with; nothing: it begins (or goes on as --resume says).
  std::optional<int> from{};
  std::function<void()> on_ready{};  ///< this rank has the state and takes part
};

/// The training of one process, which may live through several attempts. Here is the order: what is tried
/// first, where the state comes from, epochs and tests, what is printed and written at the end.
class TrainingRun {
 public:
  virtual ~TrainingRun() = default;

  /// Trains and tests as the options say (without contradiction()), and prints on stdout: rank 0 the
  /// progress, every rank its weights' hash, rank 0 at last whether all are equal and the test accuracy. An
  /// error too when the ranks' weights differ. After one of the communicator: leave_attempt(), then go() with
  /// other ranks, or the end. Without `from` only the first time.
  virtual Result<> go(const TrainingAttempt& attempt) = 0;
  /// Nothing of the attempt is used any more, and of a half step nothing is left.
  virtual void leave_attempt() = 0;
  /// The steps that the state which is held has made; nothing: none is held.
  virtual std::optional<std::uint64_t> held_step() const = 0;
};

/// All are used for its life; `data` may be filled until go(). `on_phase` (may be empty) is told where this
/// rank is.
std::unique_ptr<TrainingRun> make_training_run(const TrainOptions& options, const DataSplit& data,
                                               OnPhase on_phase);

/// One attempt.
Result<> run_training(const TrainOptions& options, Communicators communicators, const DataSplit& data);

}  // namespace ddp::train
