#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/train/checkpoint/checkpoint.h"
#include "apps/train/checkpoint/checkpoint_writer.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/options/options.h"
#include "apps/train/training/trainer.h"
#include "base/result.h"

namespace ddp::train {

/// The checkpoints of one training: going on from one, and writing new ones. All ranks make the same calls.
template <class T>
class CheckpointRun {
 public:
  /// Both are used for this object's life; nothing is done before attach().
  CheckpointRun(const TrainOptions& options, Trainer<T>& trainer) : options_(options), trainer_(trainer) {}

  /// These are the ranks, and the data, from now on. What is being written goes on.
  void attach(const Communicators& communicators, const DataSplit& data);

  /// As --resume says; rank 0 reads, the others get everything from it.
  Result<> resume(const std::function<void(const std::string&)>& say);
  /// Makes the directory and tries it.
  Result<> prepare();
  /// The same for ranks that go on with a training: looks whether there is a checkpoint of its last step.
  Result<> prepare_again();
  /// Of the trainer's present state, unless there is one of this step already, or a rank dropped the step,
  /// which is said: a training that diverges must not replace its good checkpoints.
  Result<> write();
  /// Writes the end and waits until all is on the disk, or could not be written.
  Result<> finish();
  /// After finish(): why the last checkpoint could not be written. The same on all ranks.
  const Result<>& last_outcome() const { return last_outcome_; }

 private:
  /// What --resume names, on rank 0; with auto the last one that can be read, if there is one at all. Damaged
  /// ones that it is taken instead of are renamed, which is said: they are none of those that are kept.
  Result<> find(Checkpoint& found, const CheckpointState& mine) const;
  /// With the files of this training's model and optimizer.
  Result<Checkpoint> read(const std::string& path, CheckpointState state) const;
  /// kUsage where rank 0 sees no checkpoint and another rank does; `last_step` is what this one sees.
  Result<> check_places_agree(std::optional<std::uint64_t> last_step);
  Result<> take(const Checkpoint& checkpoint);
  Result<> share(const CheckpointState& state, const Safetensors& optimizer);
  /// One vector of the optimizer between rank 0, where all of it is, and the ranks' own_part()s.
  Result<std::vector<T>> gather(std::span<const T> mine);
  Result<> scatter(const Safetensors& file, const std::string& name, std::span<T> mine);
  Result<> make_directory();
  CheckpointState current_state() const;
  /// Until none of the ranks that are asked is writing; an error as soon as a rank is lost.
  Result<> await_writers(bool with_rank_0);
  void open_writer();
  /// So often, while the disk is waited for, each rank shows that it is alive.
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
  std::optional<std::uint64_t> skipped_step_;  ///< dropped, so not written; the same on all ranks
  Result<> last_outcome_;
};

}  // namespace ddp::train
