#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/dataset.h"
#include "apps/train/options/options.h"
#include "apps/train/training/trainer.h"
#include "apps/train/world/world.h"
#include "base/result.h"
#include "rendezvous/worker/worker_protocol.h"

namespace ddp::train {

/// Returns the same error (kUsage) on all ranks if ranks were given other data: it names these ranks, their
/// hosts and the file. `from` is the rank whose state the training continues with. With `from`, only a rank
/// whose data differs from that rank's gets an error, with both checksums; the others then lose that rank.
/// All ranks call it.
Result<> check_equal_data(Communicator& world, const DataSplit& mine, std::optional<int> from);

/// Returns how many epochs the default training has: the more ranks divide the images, the fewer steps has an
/// epoch. Each rank makes at least 150 steps, as four ranks do in one epoch of Fashion-MNIST, or as many as
/// one rank alone in one epoch.
int kept_epochs(std::size_t images, int world_size, const TrainOptions& options);
/// Sets options.epochs if the user left the length of the training open. `from`: the rank whose number
/// counts; `begun`: this rank has begun the training, so that its number stays. All ranks call it.
Result<> agree_on_epochs(Communicator& world, int from, std::size_t images, bool begun,
                         TrainOptions& options);

/// The ranks of one attempt; it lasts until the training is complete or a rank is lost.
struct TrainingAttempt {
  Communicators communicators;
  /// Rank whose state the training continues with; empty: it begins (or continues as --resume says).
  std::optional<int> from{};
  std::function<void()> on_ready{};  ///< called when this rank has the state and takes part
  /// Returns the last line of the output; all ranks call it at the end. Empty: there is none.
  std::function<Result<std::string>()> last_line{};
};

/// The training of one process over several attempts. This class defines the order: checks, the source of the
/// state, epochs and tests, and what is printed and written at the end.
class TrainingRun {
 public:
  virtual ~TrainingRun() = default;

  /// Trains and tests as the options say (without contradiction()). On stdout rank 0 prints the progress,
  /// every rank its weights' hash, and rank 0 at last whether all are equal and the test accuracy. Differing
  /// weights are an error, too. After an error of the communicator, call leave_attempt(), then run_attempt()
  /// with other ranks, or end. Only the first call may lack `from`.
  virtual Result<> run_attempt(const TrainingAttempt& attempt) = 0;
  /// Releases everything of the attempt and undoes a half step.
  virtual void leave_attempt() = 0;
  /// Returns how many steps the held state has made; empty: no state is held.
  virtual std::optional<std::uint64_t> held_step() const = 0;
};

/// All arguments must outlive the run; `data` may be filled until run_attempt(). `on_phase` (may be empty)
/// receives the phases of this rank.
std::unique_ptr<TrainingRun> make_training_run(const TrainOptions& options, const DataSplit& data,
                                               OnPhase on_phase);

/// Runs a training of one attempt. Reports its steps at `control`, the value of DDPLAUNCH_CONTROL. It may be
/// empty, and a link that cannot be made is no error.
Result<> run_training(const TrainOptions& options, const TrainingAttempt& attempt, const DataSplit& data,
                      const std::string& control);

/// Runs a rank with --on-peer-loss rejoin: attempt after attempt, as the launcher's agent orders at
/// `environment.control`, until the training is complete. When a rank is lost, the survivors leave the
/// attempt. They continue in the next attempt, in the same process and with the state in memory. A new
/// process gets the state from a rank that has it, and also the data if a rank on its node has it.
///
/// An error that is no peer's loss ends the run, and so does a loss without a following order.
Result<> run_rejoining(const TrainOptions& options, const WorkerEnvironment& environment);

/// Applies an order's rank assignment to `before`. kProtocol when the store's address is invalid.
Result<WorkerEnvironment> ordered(WorkerEnvironment before, const rendezvous::AttemptOrder& order);

}  // namespace ddp::train
