#pragma once

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/train/checkpoint/model_file.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/model/model.h"
#include "apps/train/schedule/schedule.h"
#include "base/files.h"
#include "base/result.h"

namespace ddp::train {

// A checkpoint is a directory step-00001234, which has this name only once it is complete:
//   model.safetensors       as --export writes it; running statistics averaged over the ranks
//   optimizer.safetensors   one number per parameter in each vector: velocity, or mean and square
//   state.json              CheckpointState, with the CRC-32 of all three

/// Everything except the vectors.
struct CheckpointState : BatchPlan {
  std::string model, dtype, optimizer;
  int mlp_width = 0, mlp_depth = 0;  ///< 0: not known, or another model
  int world_size = 1;
  std::uint64_t samples = 0;                               ///< number of training images
  std::uint32_t training_images = 0, training_labels = 0;  ///< DataSplit::checksums; 0: unknown
  TrainingPosition position;
  std::int64_t optimizer_steps = 0;
  /// Running statistics of each rank, in rank order, so that a training continues with the same bits.
  std::vector<double> running;
  std::uint32_t model_crc32 = 0, optimizer_crc32 = 0;  ///< of the files

  /// Returns how many samples of the epoch are used.
  std::uint64_t used() const;
};

std::string to_json(const CheckpointState& state);
/// Accepts only a state that a training can have written: a position in the epoch that its samples permit,
/// numbers in range, and no changed bit. The caller checks the number of running statistics. Errors begin
/// with `path`.
Result<CheckpointState> parse_checkpoint_state(const std::string& path, const std::string& text);

/// Returns the position for a training on `world_size` ranks. If a number that divides the samples differs, a
/// new segment begins after the used samples.
TrainingPosition position_after(const CheckpointState& state, int world_size, const BatchPlan& plan);

std::string checkpoint_name(std::uint64_t step);
/// Returns the step in such a name; empty if it is none.
std::optional<std::uint64_t> checkpoint_step(const std::string& name);

/// Returns whether any of a checkpoint's three files exists, or cannot be checked: it may be damaged.
bool is_checkpoint(const std::string& path);
/// Returns the names of the checkpoints in a directory, including damaged ones, oldest first. Empty if there
/// is none, or no directory; a directory that cannot be read is an error.
Result<std::vector<std::string>> list_checkpoints(const std::string& directory);
/// Returns `path` itself if it is a checkpoint, else the last one in it. kUsage if there is none.
Result<std::string> find_checkpoint(const std::string& path);

/// A checkpoint in memory. Its files are complete, belong together, and hold finite numbers only. They may
/// not fit the training.
struct Checkpoint {
  std::string path;
  CheckpointState state;
  Safetensors model, optimizer;
};

/// Reads the state of the checkpoint at `path`, without its vectors. Errors begin with the path of
/// state.json.
Result<CheckpointState> read_checkpoint_state(const std::string& path);
/// Reads the other files. Errors begin with the path of the file that is missing, truncated, damaged, another
/// checkpoint's, or refused by the check of its header.
Result<Checkpoint> read_checkpoint(const std::string& path, CheckpointState state,
                                   const Safetensors::CheckHeader& check_model,
                                   const Safetensors::CheckHeader& check_optimizer);

/// Checks the file's header: kUsage unless it holds exactly `names`, each with `size` numbers.
Result<> check_optimizer(const Safetensors& file, std::size_t size, const std::vector<std::string>& names);

/// The content of a checkpoint, in its own memory. The large vectors are not zeroed first.
template <class T>
struct CheckpointContent {
  CheckpointState state;
  AlignedBuffer<T> parameters;
  std::vector<T> running;
  std::int64_t batches = 0;  ///< batches in the running statistics
  struct StateVector {
    std::string name;
    AlignedBuffer<T> values;  ///< one for each parameter; more are not written
  };
  std::vector<StateVector> optimizer;
};

/// Writes checkpoints on its own thread, on rank 0 only. A failure (a full disk) leaves the training alone
/// and the last good checkpoint in place. It is reported once, until a checkpoint succeeds again.
template <class T>
class CheckpointWriter {
 public:
  struct Config {
    std::string directory;
    int keep = 3;
  };
  /// `say` is called from the writer's thread. `model` only gives the names of its tensors.
  CheckpointWriter(Config config, const Model<T>& model, std::function<void(const std::string&)> say)
      : config_(std::move(config)), model_(model), say_(std::move(say)) {
    // Not std::random_device: libstdc++ built on a new glibc would need arc4random (2.36) on each node.
    std::uint64_t nonce = 0;
    if (::getrandom(&nonce, sizeof nonce, 0) < 0) nonce = static_cast<std::uint64_t>(::getpid());
    nonce_ = std::to_string(nonce);
    std::error_code ignored;
    for (const std::filesystem::path& path : list_directory(config_.directory))
      if (is_leftover(path)) std::filesystem::remove_all(path, ignored);  // of an ended training
    thread_ = std::thread(&CheckpointWriter::serve, this);
  }

  /// Completes a checkpoint that is being written.
  ~CheckpointWriter() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Removes the checkpoints before the last Config::keep up to `step`. Requires that nothing is being
  /// written.
  void remove_old(std::uint64_t step) {
    const auto names = checkpoints_until(step);
    std::error_code ignored;
    for (std::size_t i = 0; i + static_cast<std::size_t>(config_.keep) < names.size(); ++i) {
      // A half checkpoint must never have a checkpoint's name.
      const std::string gone = aside(names[i]);
      if (rename_to(config_.directory + "/" + names[i], gone)) std::filesystem::remove_all(gone, ignored);
    }
  }

  /// Returns at once unless the previous checkpoint is still being written.
  void write(CheckpointContent<T> content) {
    DDP_REQUIRE(content.parameters.size() == model_.parameter_count(), content.parameters.size());
    for (const auto& vector : content.optimizer)
      DDP_REQUIRE(vector.values.size() >= content.parameters.size(), vector.name, vector.values.size());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !next_ && !busy_; });
    next_ = std::move(content);
    changed_.notify_all();
  }

  /// Returns whether nothing is being written; waits up to `longest` for that.
  bool idle_within(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, longest, [this] { return !next_ && !busy_; });
  }

  /// Waits until nothing is being written; returns the outcome of the last checkpoint.
  Result<> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !next_ && !busy_; });
    return last_;
  }

 private:
  static constexpr std::string_view kUnfinished = ".tmp-";

  /// Returns whether this is an unfinished directory of a training: a checkpoint that was being written or
  /// removed. All other files beside the checkpoints belong to the user.
  static bool is_leftover(const std::filesystem::path& path) {
    const std::string name = path.filename().string();
    if (!name.starts_with(kUnfinished)) return false;
    std::string_view rest = std::string_view(name).substr(kUnfinished.size());
    const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (digits == 0) return false;
    rest.remove_prefix(digits);
    std::error_code ignored;
    const std::filesystem::file_type type = std::filesystem::symlink_status(path, ignored).type();
    if (type != std::filesystem::file_type::directory) return false;
    for (const std::string_view kind : {"-old-", "-"}) {
      if (rest.starts_with(kind)) return checkpoint_step(std::string(rest.substr(kind.size()))).has_value();
    }
    return false;
  }

  static Result<> rename_to(const std::string& from, const std::string& to) {
    if (std::rename(from.c_str(), to.c_str()) != 0)
      return system_error(errno, "rename " + from + " to " + to);
    return {};
  }

  /// Exchanges the names of two directories. If the file system cannot do that atomically, `to` is missing
  /// for a moment and has the name `aside`.
  static Result<> exchange(const std::string& from, const std::string& to, const std::string& aside) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return {};
    if (errno != EINVAL && errno != ENOSYS) return system_error(errno, "exchange " + from + " and " + to);
    DDP_TRY(rename_to(to, aside));
    const Result<> done = rename_to(from, to);
    const Result<> back = rename_to(aside, done ? from : to);
    return done ? back : done;
  }

  /// A state from which no training can continue must not replace a good one.
  static Result<> check_finite(std::initializer_list<std::span<const T>> vectors) {
    if (std::ranges::all_of(vectors, all_finite<T>)) return {};
    return Error{ErrorCode::kUsage, "its weights or its optimizer's state are not finite"};
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return next_ || stop_; });
      if (!next_) return;
      const CheckpointContent<T> content = std::move(*next_);
      next_.reset();
      busy_ = true;
      lock.unlock();
      auto done = write_checkpoint(content);
      report(content.state.position.step, done);
      lock.lock();
      last_ = std::move(done);
      busy_ = false;
      changed_.notify_all();
    }
  }

  Result<> write_checkpoint(const CheckpointContent<T>& content) {
    const std::string name = checkpoint_name(content.state.position.step);
    const std::string folder = unfinished(name);
    auto done = write_files(content, folder);
    if (done) done = publish(folder, name);
    std::error_code ignored;
    if (done) {
      remove_old(content.state.position.step);
    } else {
      std::filesystem::remove_all(folder, ignored);
    }
    return done;
  }

  Result<> write_files(const CheckpointContent<T>& content, const std::string& folder) {
    std::error_code failed;
    if (!std::filesystem::create_directory(folder, failed))
      return system_error(failed.value(), "create " + folder);
    // Beside the model's file, for the sake of the checksums and flushes; where no thread is left, after it.
    auto optimizer_file = std::async([&]() -> Result<std::uint32_t> {
      std::vector<TensorView> vectors;
      for (const auto& vector : content.optimizer) {
        const auto values = vector.values.span().first(content.parameters.size());
        DDP_TRY(check_finite({values}));
        vectors.push_back({vector.name,
                           std::is_same_v<T, float> ? TensorType::kF32 : TensorType::kF64,
                           {static_cast<std::int64_t>(values.size())},
                           std::as_bytes(values)});
      }
      return write_safetensors(folder + "/optimizer.safetensors", vectors, {});
    });
    CheckpointState state = content.state;
    const auto write_model = [&]() -> Result<std::uint32_t> {
      DDP_TRY(check_finite({content.parameters.span(), content.running}));
      const ModelState<T> weights(model_, content.parameters.span(), content.running, content.batches);
      return write_safetensors(folder + "/model.safetensors", weights.tensors(),
                               {{"format", "pt"}, {"model", state.model}});
    };
    const auto model = write_model();
    const auto optimizer = DDP_TRY(optimizer_file.get());
    state.model_crc32 = DDP_TRY(model);
    state.optimizer_crc32 = optimizer;
    const std::string text = to_json(state);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    DDP_TRY(write_file(folder + "/state.json", {&bytes, 1}));
    return sync_directory(folder);
  }

  /// The directory with the checkpoint's name is a complete checkpoint at every moment.
  Result<> publish(const std::string& folder, const std::string& name) {
    const std::string path = config_.directory + "/" + name;
    std::error_code ignored;
    const bool replaces = is_checkpoint(path);
    // A directory that is no checkpoint belongs to the user, and then this fails.
    Result<> done = replaces ? exchange(folder, path, aside(name)) : rename_to(folder, path);
    if (done) done = sync_directory(config_.directory);
    if (done && replaces) std::filesystem::remove_all(folder, ignored);
    return done;
  }

  std::string unfinished(const std::string& name) const {
    return config_.directory + "/" + std::string(kUnfinished) + nonce_ + "-" + name;
  }
  /// Returns the temporary name of a checkpoint that is to be removed.
  std::string aside(const std::string& name) const { return unfinished("old-" + name); }
  /// Returns the checkpoints up to `step` that have a state.json. Later ones are damaged, or another
  /// training's.
  std::vector<std::string> checkpoints_until(std::uint64_t step) const {
    const auto listed = list_checkpoints(config_.directory);
    std::vector<std::string> names = listed ? *listed : std::vector<std::string>();
    std::erase_if(names, [&](const std::string& name) {
      std::error_code ignored;
      return *checkpoint_step(name) > step ||
             !std::filesystem::exists(config_.directory + "/" + name + "/state.json", ignored);
    });
    return names;
  }

  void report(std::uint64_t step, const Result<>& done) {
    const std::string name = checkpoint_name(step);
    if (done) {
      if (failing_) say_("checkpoint " + name + " written: checkpoints work again");
      failing_ = false;
      return;
    }
    if (std::exchange(failing_, true)) return;
    const auto names = checkpoints_until(step);
    say_("checkpoint " + name + " not written: " + done.error().text + "; training continues, " +
         (names.empty() ? "without a checkpoint so far" : "the last good one is " + names.back()));
  }

  Config config_;
  std::string nonce_;  ///< unique to this writer
  const Model<T>& model_;
  std::function<void(const std::string&)> say_;
  bool failing_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CheckpointContent<T>> next_;
  bool busy_ = false;
  Result<> last_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ddp::train
