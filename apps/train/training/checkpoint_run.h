#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/checkpoint.h"
#include "apps/train/checkpoint_writer.h"
#include "apps/train/communicator.h"
#include "apps/train/options.h"
#include "apps/train/trainer.h"
#include "base/result.h"

namespace ddp::train {

/// The checkpoints of one training: going on from one, and writing new ones. All ranks make the same calls.
template <class T>
class CheckpointRun {
 public:
  /// Both are used for this object's life; nothing is done before attach().
  CheckpointRun(const Options& options, Trainer<T>& trainer) : options_(options), trainer_(trainer) {}

  /// These are the ranks from now on. `samples`: of the training data. What is being written goes on.
  void attach(const Communicators& communicators, std::size_t samples);

  /// As --resume says; rank 0 reads, the others get everything from it.
  Result<> resume(const std::function<void(const std::string&)>& say);
  /// Makes the directory and tries it; with parts on several ranks also whether all see the same one.
  Result<> prepare();
  /// The same for ranks that go on with a training: looks whether there is a checkpoint of its last step.
  Result<> prepare_again();
  /// Of the trainer's present state, unless there is one of this step already.
  Result<> write();
  /// Writes the end and waits until all is on the disk, or could not be written.
  Result<> finish();
  /// After finish(): why the last checkpoint could not be written. The same on all ranks.
  const Result<>& last_outcome() const { return last_outcome_; }

 private:
  /// What rank 0 reads; an empty text: --resume auto has found nothing.
  struct Found {
    std::string path;
    std::string state;  ///< state.json
    std::map<std::string, std::vector<double>> optimizer;
  };
  Result<> read(Found& found);
  Result<> share(const CheckpointState& state, Found found);
  Result<> make_directory(const std::string& proof);
  CheckpointState current_state() const;
  /// Until no rank writes; an error as soon as one is lost, while others may still wait for its part.
  Result<> await_writers();
  bool is_written(std::uint64_t step) const;
  bool writes() const { return world_->rank() == 0 || options_.zero; }
  void open_writer(const std::string& nonce, std::vector<std::string> spared);
  Result<std::uint64_t> agree(std::uint64_t mine);

  const Options& options_;
  Trainer<T>& trainer_;
  Communicator* world_ = nullptr;
  int interrupt_ = -1;
  std::size_t samples_ = 0;
  std::unique_ptr<CheckpointWriter<T>> writer_;
  std::optional<std::uint64_t> written_step_;
  Result<> last_outcome_;
};

}  // namespace ddp::train
