#include "apps/train/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <future>
#include <initializer_list>
#include <span>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "apps/train/checkpoint/model_file.h"
#include "apps/train/checkpoint/output_path.h"
#include "base/files.h"
#include "base/require.h"
#include "base/unique_fd.h"

namespace ddp::train {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUnfinished = ".tmp-";

/// Returns whether this is an unfinished directory of a training: a checkpoint that was being written or
/// removed. All other files beside the checkpoints belong to the user.
bool is_leftover(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kUnfinished)) return false;
  std::string_view rest = std::string_view(name).substr(kUnfinished.size());
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0) return false;
  rest.remove_prefix(digits);
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path, ignored).type();
  if (type != fs::file_type::directory) return false;
  for (const std::string_view kind : {"-old-", "-"}) {
    if (rest.starts_with(kind)) return checkpoint_step(std::string(rest.substr(kind.size()))).has_value();
  }
  return false;
}

Result<> write_text(const std::string& path, const std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return system_error(errno, "create " + path);
  const ssize_t written = ::write(fd.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size()))
    return system_error(written < 0 ? errno : ENOSPC, "write " + path);
  if (::fsync(fd.get()) != 0) return system_error(errno, "fsync " + path);
  return {};
}

Result<> rename_to(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) return system_error(errno, "rename " + from + " to " + to);
  return {};
}

/// Exchanges the names of two directories. If the file system cannot do that atomically, `to` is missing for
/// a moment and has the name `aside`.
Result<> exchange(const std::string& from, const std::string& to, const std::string& aside) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return {};
  if (errno != EINVAL && errno != ENOSYS) return system_error(errno, "exchange " + from + " and " + to);
  Result<> done = rename_to(to, aside);
  if (!done) return done;
  done = rename_to(from, to);
  const Result<> back = rename_to(aside, done ? from : to);
  return done ? back : done;
}

}  // namespace

template <class T>
CheckpointWriter<T>::CheckpointWriter(Config config, const Model<T>& model,
                                      std::function<void(const std::string&)> say)
    : config_(std::move(config)), model_(model), say_(std::move(say)) {
  // Not std::random_device: libstdc++ built on a new glibc would need arc4random (2.36) on each node.
  std::uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) < 0) nonce = static_cast<std::uint64_t>(::getpid());
  nonce_ = std::to_string(nonce);
  std::error_code ignored;
  std::vector<fs::path> stale;  // unfinished files of an ended training
  for (const fs::path& path : list_directory(config_.directory))
    if (is_leftover(path)) stale.push_back(path);
  for (const fs::path& path : stale)
    fs::remove_all(path, ignored);
  thread_ = std::thread(&CheckpointWriter::serve, this);
}

template <class T>
CheckpointWriter<T>::~CheckpointWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

template <class T>
void CheckpointWriter<T>::write(CheckpointContent<T> content) {
  DDP_REQUIRE(content.parameters.size() == model_.parameter_count(), content.parameters.size());
  for (const auto& vector : content.optimizer)
    DDP_REQUIRE(vector.values.size() >= content.parameters.size(), vector.name, vector.values.size());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !next_ && !busy_; });
  next_ = std::move(content);
  changed_.notify_all();
}

template <class T>
bool CheckpointWriter<T>::idle_within(std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest, [this] { return !next_ && !busy_; });
}

template <class T>
Result<> CheckpointWriter<T>::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !next_ && !busy_; });
  return last_;
}

template <class T>
void CheckpointWriter<T>::serve() {
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

/// A state from which no training can continue must not replace a good one.
template <class T>
Result<> check_finite(std::initializer_list<std::span<const T>> vectors) {
  if (std::ranges::all_of(vectors, all_finite<T>)) return {};
  return Error{ErrorCode::kUsage, "its weights or its optimizer's state are not finite"};
}

template <class T>
Result<> CheckpointWriter<T>::write_files(const CheckpointContent<T>& content, const std::string& folder) {
  std::error_code failed;
  if (!fs::create_directory(folder, failed)) return system_error(failed.value(), "create " + folder);
  // Beside the model's file, for the sake of the checksums and flushes; where no thread is left, after it.
  auto optimizer_file = std::async([&]() -> Result<std::uint32_t> {
    std::vector<TensorView> vectors;
    for (const auto& vector : content.optimizer) {
      const auto values = vector.values.span().first(content.parameters.size());
      if (auto finite = check_finite<T>({values}); !finite) return finite.error();
      vectors.push_back({vector.name,
                         std::is_same_v<T, float> ? TensorType::kF32 : TensorType::kF64,
                         {static_cast<std::int64_t>(values.size())},
                         std::as_bytes(values)});
    }
    return write_safetensors(folder + "/optimizer.safetensors", vectors, {});
  });
  CheckpointState state = content.state;
  const auto write_model = [&]() -> Result<std::uint32_t> {
    if (auto finite = check_finite<T>({content.parameters.span(), content.running}); !finite)
      return finite.error();
    const ModelState<T> weights(model_, content.parameters.span(), content.running, content.batches);
    return write_safetensors(folder + "/model.safetensors", weights.tensors(),
                             {{"format", "pt"}, {"model", state.model}});
  };
  const auto model = write_model();
  const auto optimizer = optimizer_file.get();
  if (!optimizer) return optimizer.error();
  if (!model) return model.error();
  state.model_crc32 = *model;
  state.optimizer_crc32 = *optimizer;
  if (auto done = write_text(folder + "/state.json", to_json(state)); !done) return done;
  return sync_directory(folder);
}

/// The directory with the checkpoint's name is a complete checkpoint at every moment.
template <class T>
Result<> CheckpointWriter<T>::publish(const std::string& folder, const std::string& name) {
  const std::string path = config_.directory + "/" + name;
  std::error_code ignored;
  const bool replaces = is_checkpoint(path);
  // A directory that is no checkpoint belongs to the user, and then this fails.
  Result<> done = replaces ? exchange(folder, path, aside(name)) : rename_to(folder, path);
  if (done) done = sync_directory(config_.directory);
  if (done && replaces) fs::remove_all(folder, ignored);
  return done;
}

template <class T>
Result<> CheckpointWriter<T>::write_checkpoint(const CheckpointContent<T>& content) {
  const std::string name = checkpoint_name(content.state.position.step);
  const std::string folder = unfinished(name);
  auto done = write_files(content, folder);
  if (done) done = publish(folder, name);
  std::error_code ignored;
  if (done) {
    remove_old(content.state.position.step);
  } else {
    fs::remove_all(folder, ignored);
  }
  return done;
}

template <class T>
std::vector<std::string> CheckpointWriter<T>::checkpoints_until(std::uint64_t step) const {
  const auto listed = list_checkpoints(config_.directory);
  std::vector<std::string> names = listed ? *listed : std::vector<std::string>();
  std::erase_if(names, [&](const std::string& name) {
    std::error_code ignored;
    return *checkpoint_step(name) > step ||
           !fs::exists(config_.directory + "/" + name + "/state.json", ignored);
  });
  return names;
}

template <class T>
void CheckpointWriter<T>::remove_old(std::uint64_t step) {
  const auto names = checkpoints_until(step);
  std::error_code ignored;
  for (std::size_t i = 0; i + static_cast<std::size_t>(config_.keep) < names.size(); ++i) {
    // A half checkpoint must never have a checkpoint's name.
    const std::string gone = aside(names[i]);
    if (rename_to(config_.directory + "/" + names[i], gone)) fs::remove_all(gone, ignored);
  }
}

template <class T>
void CheckpointWriter<T>::report(std::uint64_t step, const Result<>& done) {
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

template class CheckpointWriter<float>;
template class CheckpointWriter<double>;

}  // namespace ddp::train
