#pragma once

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/train/checkpoint/checkpoint.h"
#include "apps/train/checkpoint/model_file.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/options/options.h"
#include "apps/train/schedule/schedule.h"
#include "apps/train/training/trainer.h"
#include "base/result.h"
#include "base/text.h"

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

/// Parts of share_state().
namespace shared_state {

/// The first message of `from`.
struct StateHeader {
  std::uint64_t parameters = 0, running = 0, vectors = 0;  ///< sizes; vectors: number of optimizer vectors
  std::uint64_t hash = 0;                                  ///< hash of all numbers that follow
  std::int64_t optimizer_steps = 0, batches = 0;
  TrainingPosition position;
  std::int64_t dropped_in_a_row = 0;
  TrainingMarks marks;
};
static_assert(std::is_trivially_copyable_v<StateHeader>);

/// The state that each rank reports to hold.
struct RetainedState {
  std::uint64_t any = 0, step = 0, hash = 0;
};

/// Returns the running statistics, the weights, and the optimizer's vectors.
template <class T>
std::vector<std::span<T>> vectors_of(Trainer<T>& trainer) {
  std::vector<std::span<T>> vectors{trainer.model().running_statistics(), trainer.model().parameters()};
  for (const auto& one : trainer.optimizer().state())
    vectors.push_back(one.values);
  return vectors;
}

/// Hashes weights and optimizer: they are equal on ranks of the same step.
template <class T>
std::uint64_t hash_of(Trainer<T>& trainer) {
  std::uint64_t hash = kFnvStart;
  for (const std::span<T> vector : vectors_of(trainer) | std::views::drop(1))
    hash = fnv_hash(std::as_bytes(vector), hash);
  return hash;
}

template <class T>
StateHeader head_of(Trainer<T>& trainer, const TrainingMarks& marks) {
  StateHeader head;
  head.parameters = trainer.model().parameter_count();
  head.running = trainer.model().running_statistics().size();
  head.vectors = trainer.optimizer().state().size();
  head.optimizer_steps = trainer.optimizer().steps();
  head.batches = trainer.model().batches();
  head.position = trainer.position();
  head.dropped_in_a_row = trainer.dropped_in_a_row();
  head.marks = marks;
  return head;
}

/// Converts the position of `from`'s world to the present world.
inline TrainingPosition position_here(const TrainOptions& options, const StateHeader& head,
                                      std::uint64_t samples, int world) {
  CheckpointState state;
  state.world_size = head.marks.world_size;
  static_cast<BatchPlan&>(state) = options;
  state.samples = samples;
  state.position = head.position;
  return position_after(state, world, options);
}

}  // namespace shared_state

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
                     std::uint64_t samples, Trainer<T>& trainer, TrainingMarks& marks) {
  using namespace shared_state;
  const RetainedState mine =
      held ? RetainedState{1, trainer.position().step, hash_of(trainer)} : RetainedState{};
  const auto all = DDP_TRY(gather_values(world, mine));
  const RetainedState& source = all[static_cast<std::size_t>(from)];
  if (source.any == 0) {
    return error_of(ErrorCode::kProtocol, "rank ", from,
                    " holds no state of the training, although the launcher chose it as the source");
  }
  bool needed = false;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    const RetainedState& one = all[static_cast<std::size_t>(rank)];
    const bool behind = one.any == 0 || one.step != source.step;
    // With --sync-every-inter nodes may differ, and `from` makes them equal.
    if (!behind && one.hash != source.hash && options.sync_every_inter == 1) {
      return error_of(ErrorCode::kInternal, "weights differ after step ", source.step, ": those of rank ",
                      rank, " are not those of rank ", from);
    }
    needed = needed || behind || one.hash != source.hash;
  }
  const bool sends = world.rank() == from;
  StateHeader head = head_of(trainer, marks);
  std::vector<T> numbers;
  if (sends && needed)
    for (const std::span<T> vector : vectors_of(trainer))
      numbers.insert(numbers.end(), vector.begin(), vector.end());
  if (sends) head.hash = fnv_hash(std::as_bytes(std::span(numbers)));
  const StateHeader own = head;
  DDP_TRY(world.broadcast(std::as_writable_bytes(std::span(&head, 1)), from));
  if (head.parameters != own.parameters || head.running != own.running || head.vectors != own.vectors)
    return error_of(ErrorCode::kProtocol, "rank ", from, " trains another model");
  if (needed) {
    numbers.resize(head.running + head.parameters * (1 + head.vectors));
    DDP_TRY(world.broadcast(std::as_writable_bytes(std::span(numbers)), from));
    if (fnv_hash(std::as_bytes(std::span(numbers))) != head.hash) {
      return error_of(ErrorCode::kInternal, "rank ", world.rank(), " received other weights than rank ", from,
                      " sent");
    }
    bool wanted = !held || mine.step != source.step;  // the running statistics come first
    std::span<const T> left(numbers);
    for (const std::span<T> vector : vectors_of(trainer)) {
      if (wanted) std::ranges::copy(left.first(vector.size()), vector.begin());
      left = left.subspan(vector.size());
      wanted = true;
    }
  }
  trainer.optimizer().set_steps(head.optimizer_steps);
  trainer.model().batches() = head.batches;
  trainer.dropped_in_a_row() = static_cast<int>(head.dropped_in_a_row);
  trainer.position() = position_here(options, head, samples, world.world_size());
  trainer.are_averaged();
  marks = head.marks;
  marks.world_size = world.world_size();
  return {};
}

/// The checkpoints of one training: resumes from one, and writes new ones. All ranks make the same calls.
template <class T>
class CheckpointRun {
 public:
  /// All arguments must outlive this object. Its ranks are those that the trainer is attached to.
  CheckpointRun(const TrainOptions& options, const DataSplit& data, Trainer<T>& trainer)
      : options_(options), data_(data), trainer_(trainer) {}

  /// Resumes as --resume says; rank 0 reads, and the other ranks get everything from it.
  Result<> resume(const std::function<void(const std::string&)>& say) {
    if (options_.resume.empty()) return {};
    Checkpoint found;
    const CheckpointState mine = current_state();
    SeenCheckpoint seen;
    const auto read_it = [&]() -> Result<> {
      seen = newest_checkpoint();
      if (world().rank() != 0) return {};
      auto done = find(found, mine);
      return done && !found.path.empty() ? load_model(found) : done;
    };
    DDP_TRY(share_outcome(world(), read_it, sign(), interrupt()));
    DDP_TRY(check_places_agree(seen));
    std::string text = found.path.empty() ? "" : to_json(found.state);
    std::uint64_t size = text.size();
    DDP_TRY(world().broadcast(std::as_writable_bytes(std::span(&size, 1)), 0));
    if (size == 0) return {};
    text.resize(size);
    DDP_TRY(world().broadcast(std::as_writable_bytes(std::span(text)), 0));
    const auto state = DDP_TRY(parse_checkpoint_state("state.json", text));
    DDP_TRY(share(state, found.optimizer));
    trainer_.position() = position_after(state, world().world_size(), options_);
    trainer_.set_warmed_up();
    trainer_.optimizer().set_steps(state.optimizer_steps);
    written_step_ = state.position.step;
    if (world().rank() == 0) {
      say(concat("resuming from ", found.path, ": step ", state.position.step, ", epoch ",
                 trainer_.position().epoch + 1, ", ", counted(state.world_size, "rank"), " then, ",
                 world().world_size(), " now"));
    }
    return {};
  }

  /// Makes the directory and checks that it is writable.
  Result<> prepare() {
    if (options_.checkpoint_dir.empty()) return {};
    const auto make = [this]() -> Result<> { return world().rank() == 0 ? make_directory() : Result<>(); };
    return share_outcome(world(), make, sign(), interrupt());
  }

  /// The same for ranks that continue a training: checks whether a checkpoint of its last step exists.
  Result<> prepare_again() {
    if (options_.checkpoint_dir.empty()) return {};
    // A former rank 0 may still be writing, and a new writer would remove its files as leftovers.
    DDP_TRY(await_writers(false));
    const std::uint64_t step = trainer_.position().step;
    std::uint64_t there = 0;
    const auto prepare_rank_0 = [&]() -> Result<> {
      if (world().rank() != 0) return {};
      // A checkpoint that cannot be read is written again.
      const std::string path = options_.checkpoint_dir + "/" + checkpoint_name(step);
      auto state = read_checkpoint_state(path);
      there = state && read(path, std::move(*state)).has_value();
      std::error_code ignored;
      std::filesystem::create_directories(options_.checkpoint_dir, ignored);  // the first write reports it
      if (!writer_) open_writer();
      return {};
    };
    DDP_TRY(share_outcome(world(), prepare_rank_0, sign(), interrupt()));
    DDP_TRY(world().broadcast(std::as_writable_bytes(std::span(&there, 1)), 0));
    written_step_.reset();
    skipped_step_.reset();
    if (there != 0) written_step_ = step;
    return {};
  }

  /// Writes the trainer's present state, unless this step has a checkpoint already. If a rank dropped the
  /// step, a notice is printed instead: a training that diverges must not replace its good checkpoints.
  Result<> write() {
    const std::uint64_t step = trainer_.position().step;
    if (options_.checkpoint_dir.empty() || written_step_ == step || skipped_step_ == step) return {};
    // A disk may take longer than ranks bear each other's silence.
    DDP_TRY(await_writers(true));
    CheckpointContent<T> content;
    content.state = current_state();
    const auto running = trainer_.model().running_statistics();
    // The first number says whether this rank dropped the step, since nodes may differ. The running
    // statistics follow, as bits.
    std::vector<std::uint64_t> mine{trainer_.dropped_in_a_row() != 0};
    std::transform(running.begin(), running.end(), std::back_inserter(mine),
                   [](T value) { return std::bit_cast<std::uint64_t>(static_cast<double>(value)); });
    const auto all = DDP_TRY(world().all_gather(mine));
    for (auto rank = all.begin(); rank != all.end(); rank += static_cast<std::ptrdiff_t>(mine.size())) {
      if (*rank != 0) {
        skipped_step_ = step;
        if (world().rank() == 0)
          std::fprintf(stderr, "train: checkpoint %s not written: the step was dropped\n",
                       checkpoint_name(step).c_str());
        return {};
      }
      std::transform(rank + 1, rank + static_cast<std::ptrdiff_t>(mine.size()),
                     std::back_inserter(content.state.running),
                     [](std::uint64_t word) { return std::bit_cast<double>(word); });
    }
    for (const auto& one : trainer_.optimizer().state()) {
      auto whole = DDP_TRY(gather(one.values));
      content.optimizer.push_back({std::string(one.name), std::move(whole)});
    }
    written_step_ = step;
    if (world().rank() != 0) return {};
    content.parameters = copy_of(trainer_.model().parameters());
    content.running.assign(running.size(), T{});
    for (std::size_t i = 0; i < content.state.running.size(); ++i)
      content.running[i % running.size()] += static_cast<T>(content.state.running[i]);
    kernels::average<T>(content.running, T(1) / static_cast<T>(world().world_size()));
    content.batches = trainer_.model().batches();
    writer_->write(std::move(content));
    return {};
  }

  /// Writes the last checkpoint and waits until it is on the disk, or has failed.
  Result<> finish() {
    DDP_TRY(write());
    if (options_.checkpoint_dir.empty()) return {};
    DDP_TRY(await_writers(true));
    // A former rank 0 still has its writer.
    Result<> last = writer_ && world().rank() == 0 ? writer_->wait() : Result<>();
    if (last && skipped_step_ == trainer_.position().step)
      last = error_of(ErrorCode::kSystem, "step ", *skipped_step_, " was dropped");
    if (!last) {
      last =
          error_of(ErrorCode::kSystem,
                   "the training is complete but its last checkpoint was not written: ", last.error().text);
    }
    last_outcome_ = share_outcome(world(), last);
    return {};
  }

  /// After finish(): why the last checkpoint could not be written. Equal on all ranks.
  const Result<>& last_outcome() const { return last_outcome_; }

 private:
  /// Numbers that are exchanged at once, so that no rank needs room for a whole optimizer.
  static constexpr std::size_t kPiece = std::size_t{1} << 20;

  Communicator& world() const { return *trainer_.communicators().world; }
  int interrupt() const { return trainer_.communicators().interrupt; }

  static AlignedBuffer<T> copy_of(std::span<const T> values) {
    auto copy = AlignedBuffer<T>::uninitialized(values.size());
    std::ranges::copy(values, copy.data());
    return copy;
  }

  /// Returns how this training and the checkpoint's differ in a way that prevents resuming.
  static std::string mismatch(const CheckpointState& mine, const CheckpointState& theirs) {
    std::string text;
    const auto compare = [&text](const char* what, const auto& here, const auto& there) {
      if (text.empty() && here != there) text = concat(what, " is ", there, " there and ", here, " here");
    };
    const auto known = [](auto a, auto b) { return a != 0 && b != 0; };
    compare("--model", mine.model, theirs.model);
    if (known(mine.mlp_width, theirs.mlp_width)) compare("--mlp-width", mine.mlp_width, theirs.mlp_width);
    if (known(mine.mlp_depth, theirs.mlp_depth)) compare("--mlp-depth", mine.mlp_depth, theirs.mlp_depth);
    compare("--dtype", mine.dtype, theirs.dtype);
    compare("--optimizer", mine.optimizer, theirs.optimizer);
    compare("--seed", mine.seed, theirs.seed);
    compare("the number of training images", mine.samples, theirs.samples);
    const auto differ = [&](auto a, auto b) { return text.empty() && known(a, b) && a != b; };
    if (differ(mine.training_images, theirs.training_images)) return "the training images differ";
    if (differ(mine.training_labels, theirs.training_labels)) return "the training labels differ";
    return text;
  }

  /// Renames a damaged checkpoint, so that it is neither counted nor removed. Returns a text about the
  /// outcome.
  static std::string set_aside(const std::string& path) {
    std::string to = path + ".damaged";
    std::error_code failed;
    // A link that leads nowhere has the name as well.
    for (int number = 2; std::filesystem::exists(std::filesystem::symlink_status(to, failed)); ++number)
      to = concat(path, ".damaged-", number);
    std::filesystem::rename(path, to, failed);
    return failed ? "not renamed: " + failed.message() : "renamed to " + to;
  }

  /// Finds on rank 0 the checkpoint that --resume names; with auto the last readable one, if any exists.
  /// Later, damaged checkpoints are renamed with a notice, so that they do not count as kept checkpoints.
  Result<> find(Checkpoint& found, const CheckpointState& mine) const {
    const bool choose = options_.resume == "auto";
    std::string directory = options_.checkpoint_dir;
    std::vector<std::string> paths;
    if (choose) {
      const auto names = DDP_TRY(list_checkpoints(directory));
      for (const std::string& name : names)
        paths.push_back(directory + "/" + name);
    } else {
      auto path = DDP_TRY(find_checkpoint(options_.resume));
      directory = std::filesystem::path(path).parent_path().string();
      paths.push_back(std::move(path));
    }
    std::vector<std::pair<std::string, Error>> damaged;
    for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
      auto state = read_checkpoint_state(*path);
      const auto named = checkpoint_step(std::filesystem::path(*path).filename().string());
      if (choose && state && named != state->position.step) {
        state = usage_error(*path, ": is the checkpoint of step ", state->position.step,
                            ", which is not the step in its name");
      }
      const std::string difference = state ? mismatch(mine, *state) : "";
      if (!difference.empty()) {
        return usage_error("cannot resume from ", *path, ": ", difference,
                           "; resume with the same options and data, or name another checkpoint");
      }
      auto checkpoint = state ? read(*path, std::move(*state)) : Result<Checkpoint>(state.error());
      if (checkpoint) {
        found = std::move(*checkpoint);
        for (const auto& [bad, why] : damaged)
          std::fprintf(stderr, "train: %s; %s; resuming from the last good checkpoint, %s\n",
                       why.text.c_str(), set_aside(bad).c_str(), path->c_str());
        return {};
      }
      // Without a sign of damage, a person must check the disk or the format.
      Error error = checkpoint.error();
      if (error.code == ErrorCode::kRefused || (error.code == ErrorCode::kSystem && error.sys != ENOENT))
        return error;
      damaged.emplace_back(*path, std::move(error));
    }
    if (damaged.empty()) return {};
    Error last = damaged.front().second;
    if (paths.size() > 1) {
      last.text += concat("; none of the ", paths.size(), " checkpoints in ", directory,
                          " is good; to start over, give another --checkpoint-dir");
    } else if (const auto names = list_checkpoints(directory); !choose && names && names->size() > 1) {
      last.text += "; --checkpoint-dir " + directory + " --resume auto resumes from the last good checkpoint";
    }
    return last;
  }

  /// Reads the files of a checkpoint for this training's model and optimizer.
  Result<Checkpoint> read(const std::string& path, CheckpointState state) const {
    const Model<T>& model = trainer_.model();
    std::vector<std::string> names;
    for (const auto& one : trainer_.optimizer().state())
      names.emplace_back(one.name);
    return read_checkpoint(
        path, std::move(state), [&](const Safetensors& header) { return check_model<T>(header, model); },
        [&](const Safetensors& header) { return check_optimizer(header, model.parameter_count(), names); });
  }

  /// The last checkpoint that this rank finds at --resume.
  struct SeenCheckpoint {
    std::uint64_t is_there = 0, step = 0;
    std::uint64_t crcs = 0;  ///< of both files; 0 with auto, where a later step alone counts
  };
  SeenCheckpoint newest_checkpoint() const {
    if (options_.resume == "auto") {
      const auto names = list_checkpoints(options_.checkpoint_dir);
      return names && !names->empty() ? SeenCheckpoint{1, *checkpoint_step(names->back())} : SeenCheckpoint{};
    }
    const auto path = find_checkpoint(options_.resume);
    const auto state = path ? read_checkpoint_state(*path) : Result<CheckpointState>(path.error());
    if (!state) return {};  // rank 0 says why, if it is rank 0's as well
    return {1, state->position.step, std::uint64_t{state->model_crc32} << 32 | state->optimizer_crc32};
  }

  /// kUsage if another rank sees a later checkpoint than rank 0, or a named one that is not rank 0's.
  Result<> check_places_agree(const SeenCheckpoint& mine) {
    const auto seen = DDP_TRY(gather_values(world(), mine));
    const bool choose = options_.resume == "auto";
    const SeenCheckpoint& first = seen[0];
    for (std::size_t number = 1; number < seen.size(); ++number) {
      const SeenCheckpoint& one = seen[number];
      const bool later = first.is_there == 0 || one.step > first.step;
      const bool another = one.step != first.step || one.crcs != first.crcs;
      if (one.is_there == 0 || !(choose ? later : another)) continue;
      const std::string rank = "rank " + std::to_string(number);
      const std::string theirs = checkpoint_name(one.step);
      if (!choose) {
        return usage_error("--resume: rank 0 finds ", checkpoint_name(first.step), " in its path, and ", rank,
                           " finds ", one.step == first.step ? "another " : "", theirs,
                           " in its own; name the same checkpoint on all ranks, or remove the other one");
      }
      const std::string own = first.is_there == 0 ? "no checkpoint" : "only " + checkpoint_name(first.step);
      return Error{
          ErrorCode::kUsage,
          "--resume auto: rank 0 finds " + own + " in " + options_.checkpoint_dir + ", and " + rank +
              " finds " + theirs +
              " there; give a --checkpoint-dir that all nodes share, copy the checkpoint to rank 0's "
              "node, or remove it to start from scratch"};
    }
    return {};
  }

  Result<> load_model(const Checkpoint& checkpoint) {
    const CheckpointState& state = checkpoint.state;
    const std::size_t running =
        trainer_.model().running_statistics().size() * static_cast<std::size_t>(state.world_size);
    if (state.running.size() != running) {
      return usage_error(checkpoint.path, "/state.json: has ", state.running.size(), " running_statistics; ",
                         counted(state.world_size, "rank"), " of this model have ", running);
    }
    import_model<T>(checkpoint.model, trainer_.model());
    return {};
  }

  Result<> share(const CheckpointState& state, const Safetensors& optimizer) {
    DDP_TRY(trainer_.share_weights());
    // With the former number of ranks, each rank gets its own running statistics; else the model has the
    // mean.
    const auto running = trainer_.model().running_statistics();
    if (state.world_size == world().world_size() &&
        state.running.size() == running.size() * world().world_size()) {
      const double* mine = state.running.data() + running.size() * static_cast<std::size_t>(world().rank());
      std::transform(mine, mine + running.size(), running.begin(),
                     [](double v) { return static_cast<T>(v); });
    }
    for (const auto& one : trainer_.optimizer().state())
      DDP_TRY(scatter(optimizer, std::string(one.name), one.values));
    return {};
  }

  /// These convert one vector of the optimizer between rank 0, which has all of it, and the ranks'
  /// own_part()s. gather() may return more numbers than there are parameters.
  Result<AlignedBuffer<T>> gather(std::span<const T> mine) {
    const bool writes = world().rank() == 0;
    if (!options_.zero) return writes ? copy_of(mine) : AlignedBuffer<T>();
    const auto ranks = static_cast<std::size_t>(world().world_size());
    auto whole = AlignedBuffer<T>::uninitialized(writes ? mine.size() * ranks : 0);
    DDP_TRY(of(world().gather(std::as_bytes(mine), std::as_writable_bytes(whole.span()), 0),
               "the checkpoint of step " + std::to_string(trainer_.position().step)));
    return whole;
  }

  Result<> scatter(const Safetensors& file, const std::string& name, std::span<T> mine) {
    const std::size_t total = trainer_.model().parameter_count();
    const GradientBucket part = trainer_.own_part();
    std::vector<T> piece;
    for (std::size_t at = 0; at < total; at += piece.size()) {
      piece.resize(std::min(kPiece, total - at));
      if (world().rank() == 0) file.copy<T>(name, at, piece);
      DDP_TRY(world().broadcast(std::as_writable_bytes(std::span(piece)), 0));
      const std::size_t end = std::min(at + piece.size(), part.end);
      for (std::size_t i = std::max(at, part.begin); i < end; ++i)
        mine[i - part.begin] = piece[i - at];
    }
    return {};
  }

  Result<> make_directory() {
    std::error_code failed;
    std::filesystem::create_directories(options_.checkpoint_dir, failed);
    if (const auto can = check_output_path("", options_.checkpoint_dir + "/.tmp-try"); !can) {
      const int why = failed ? failed.value() : can.error().sys;
      return Error{ErrorCode::kUsage, system_error(why, "--checkpoint-dir " + options_.checkpoint_dir).text,
                   why};
    }
    const auto names = DDP_TRY(list_checkpoints(options_.checkpoint_dir));
    const std::uint64_t begin = trainer_.position().step;
    // Checkpoints after the choice of --resume auto are damaged ones that could not be renamed.
    if (options_.resume != "auto" && !names.empty() && *checkpoint_step(names.back()) > begin) {
      return usage_error("--checkpoint-dir ", options_.checkpoint_dir, " holds ", names.back(),
                         " of another training, while this one begins after step ", begin,
                         "; give another --checkpoint-dir, resume from there with --resume "
                         "auto, or remove the later checkpoints");
    }
    open_writer();
    return {};
  }

  CheckpointState current_state() const {
    CheckpointState state;
    state.model = trainer_.model().name();
    if (options_.model == ModelKind::kMlp) {
      state.mlp_width = options_.mlp_width;
      state.mlp_depth = options_.mlp_depth;
    }
    state.dtype = std::is_same_v<T, float> ? "float32" : "float64";
    state.optimizer = options_.update.kind == OptimizerKind::kSgd ? "sgd" : "adamw";
    state.world_size = world().world_size();
    static_cast<BatchPlan&>(state) = options_;
    state.samples = data_.training.size();
    state.training_images = data_.checksums[0];
    state.training_labels = data_.checksums[1];
    state.position = trainer_.position();
    state.optimizer_steps = trainer_.optimizer().steps();
    return state;
  }

  /// Waits until none of the ranks in question is writing; returns an error as soon as a rank is lost.
  Result<> await_writers(bool with_rank_0) {
    const bool asked = with_rank_0 || world().rank() != 0;
    const auto idle = [&](std::chrono::milliseconds longest) {
      trainer_.report_phase("checkpoint");
      return !asked || !writer_ || writer_->idle_within(longest);
    };
    return of(meet_until(world(), idle, sign(), interrupt()), "the wait for a checkpoint");
  }

  void open_writer() {
    writer_ = std::make_unique<CheckpointWriter<T>>(
        typename CheckpointWriter<T>::Config{options_.checkpoint_dir, options_.checkpoint_keep},
        trainer_.model(), [](const std::string& text) { std::fprintf(stderr, "train: %s\n", text.c_str()); });
    // A former process may have kept more, or have ended before it removed one, and this one may write none.
    writer_->remove_old(trainer_.position().step);
  }
  /// Interval at which each rank shows that it is alive while it waits for the disk.
  std::chrono::milliseconds sign() const {
    return std::min<std::chrono::milliseconds>(std::chrono::seconds(1), options_.comm_timeout / 4);
  }

  const TrainOptions& options_;
  const DataSplit& data_;
  Trainer<T>& trainer_;
  std::unique_ptr<CheckpointWriter<T>> writer_;
  std::optional<std::uint64_t> written_step_;
  std::optional<std::uint64_t> skipped_step_;  ///< dropped, so not written; equal on all ranks
  Result<> last_outcome_;
};

}  // namespace ddp::train
