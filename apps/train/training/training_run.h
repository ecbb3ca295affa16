#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/options/options.h"
#include "apps/train/training/trainer.h"
#include "base/result.h"

namespace ddp::train {

/// Returns the place of the first occurrence of the most frequent value: the majority counts as right.
/// `values` must not be empty.
std::size_t most_frequent(const std::vector<std::uint64_t>& values);

/// Returns the same error (kUsage) on all ranks if ranks were given other data: it names these ranks, their
/// hosts and the file. `from` is the rank whose state the training continues with. With `from`, only a rank
/// whose data differs from that rank's gets an error, with both checksums; the others then lose that rank.
/// All ranks call it.
Result<> check_equal_data(Communicator& world, const DataSplit& mine, std::optional<int> from);

/// The ranks of one attempt; it lasts until the training is complete or a rank is lost.
struct TrainingAttempt {
  Communicators communicators;
  /// Rank whose state the training continues with; empty: it begins (or continues as --resume says).
  std::optional<int> from{};
  std::function<void()> on_ready{};  ///< called when this rank has the state and takes part
};

/// The training of one process over several attempts. This class defines the order: checks, the source of the
/// state, epochs and tests, and what is printed and written at the end.
class TrainingRun {
 public:
  virtual ~TrainingRun() = default;

  /// Trains and tests as the options say (without contradiction()). On stdout rank 0 prints the progress,
  /// every rank its weights' hash, and rank 0 at last whether all are equal and the test accuracy. Differing
  /// weights are an error, too. After an error of the communicator, call leave_attempt(), then go() with
  /// other ranks, or end. Only the first call may lack `from`.
  virtual Result<> go(const TrainingAttempt& attempt) = 0;
  /// Releases everything of the attempt and undoes a half step.
  virtual void leave_attempt() = 0;
  /// Returns how many steps the held state has made; empty: no state is held.
  virtual std::optional<std::uint64_t> held_step() const = 0;
};

/// All arguments must outlive the run; `data` may be filled until go(). `on_phase` (may be empty) receives
/// the phases of this rank.
std::unique_ptr<TrainingRun> make_training_run(const TrainOptions& options, const DataSplit& data,
                                               OnPhase on_phase);

/// Runs a training of one attempt. Reports its steps at `control`, the value of DDPLAUNCH_CONTROL. It may be
/// empty, and a link that cannot be made is no error.
Result<> run_training(const TrainOptions& options, Communicators communicators, const DataSplit& data,
                      const std::string& control);

}  // namespace ddp::train
