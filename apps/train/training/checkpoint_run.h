#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "apps/train/checkpoint/checkpoint.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/options/options.h"
#include "apps/train/schedule/schedule.h"
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

/// The checkpoints of one training: resumes from one, and writes new ones. All ranks make the same calls.
template <class T>
class CheckpointRun {
 public:
  /// Both arguments must outlive this object; nothing is done before attach().
  CheckpointRun(const TrainOptions& options, Trainer<T>& trainer) : options_(options), trainer_(trainer) {}

  /// Switches to these ranks and this data. A checkpoint that is being written is completed.
  void attach(const Communicators& communicators, const DataSplit& data);

  /// Resumes as --resume says; rank 0 reads, and the other ranks get everything from it.
  Result<> resume(const std::function<void(const std::string&)>& say);
  /// Makes the directory and checks that it is writable.
  Result<> prepare();
  /// The same for ranks that continue a training: checks whether a checkpoint of its last step exists.
  Result<> prepare_again();
  /// Writes the trainer's present state, unless this step has a checkpoint already. If a rank dropped the
  /// step, a notice is printed instead: a training that diverges must not replace its good checkpoints.
  Result<> write();
  /// Writes the last checkpoint and waits until it is on the disk, or has failed.
  Result<> finish();
  /// After finish(): why the last checkpoint could not be written. Equal on all ranks.
  const Result<>& last_outcome() const { return last_outcome_; }

 private:
  /// Finds on rank 0 the checkpoint that --resume names; with auto the last readable one, if any exists.
  /// Later, damaged checkpoints are renamed with a notice, so that they do not count as kept checkpoints.
  Result<> find(Checkpoint& found, const CheckpointState& mine) const;
  /// Reads the files of a checkpoint for this training's model and optimizer.
  Result<Checkpoint> read(const std::string& path, CheckpointState state) const;
  /// The last checkpoint that this rank finds at --resume.
  struct SeenCheckpoint {
    std::uint64_t is_there = 0, step = 0;
    std::uint64_t crcs = 0;  ///< of both files; 0 with auto, where a later step alone counts
  };
  SeenCheckpoint look() const;
  /// kUsage if another rank sees a later checkpoint than rank 0, or a named one that is not rank 0's.
  Result<> check_places_agree(const SeenCheckpoint& mine);
  Result<> take(const Checkpoint& checkpoint);
  Result<> share(const CheckpointState& state, const Safetensors& optimizer);
  /// These convert one vector of the optimizer between rank 0, which has all of it, and the ranks'
  /// own_part()s. gather() may return more numbers than there are parameters.
  Result<AlignedBuffer<T>> gather(std::span<const T> mine);
  Result<> scatter(const Safetensors& file, const std::string& name, std::span<T> mine);
  Result<> make_directory();
  CheckpointState current_state() const;
  /// Waits until none of the ranks in question is writing; returns an error as soon as a rank is lost.
  Result<> await_writers(bool with_rank_0);
  void open_writer();
  /// Interval at which each rank shows that it is alive while it waits for the disk.
  std::chrono::milliseconds sign() const {
    return std::min<std::chrono::milliseconds>(std::chrono::seconds(1), options_.comm_timeout / 4);
  }

  const TrainOptions& options_;
  Trainer<T>& trainer_;
  Communicator* world_ = nullptr;
  int interrupt_ = -1;
  const DataSplit* data_ = nullptr;
  std::unique_ptr<CheckpointWriter<T>> writer_;
  std::optional<std::uint64_t> written_step_;
  std::optional<std::uint64_t> skipped_step_;  ///< dropped, so not written; equal on all ranks
  Result<> last_outcome_;
};

}  // namespace ddp::train
