#include "apps/train/checkpoint_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "apps/train/model_file.h"
#include "base/unique_fd.h"

namespace ddp::train {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kPartPoll{10};
constexpr std::string_view kUnfinished = ".tmp-";

/// Whether a training made this and did not come to its end: the file that tries the directory, a checkpoint
/// under way, or one that was being removed. Whatever else lies beside the checkpoints is somebody's own.
bool is_leftover(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  if (!name.starts_with(kUnfinished)) return false;
  std::string_view rest = std::string_view(name).substr(kUnfinished.size());
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0) return false;
  rest.remove_prefix(digits);
  std::error_code ignored;
  const fs::file_type type = entry.symlink_status(ignored).type();
  if (rest.empty()) return type == fs::file_type::regular && entry.file_size(ignored) == 0;
  if (type != fs::file_type::directory) return false;
  for (const std::string_view kind : {"-old-", "-"}) {
    if (rest.starts_with(kind)) return checkpoint_step(std::string(rest.substr(kind.size()))).has_value();
  }
  return false;
}

bool is_spared(const fs::directory_entry& entry, const std::vector<std::string>& nonces) {
  const std::string name = entry.path().filename().string() + "-";
  return std::any_of(nonces.begin(), nonces.end(), [&name](const std::string& nonce) {
    return name.starts_with(std::string(kUnfinished) + nonce + "-");
  });
}

Result<> sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return system_error(errno, "fsync " + path);
  return {};
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

}  // namespace

template <class T>
CheckpointWriter<T>::CheckpointWriter(Config config, const Model<T>& model,
                                      std::function<void(const std::string&)> say)
    : config_(std::move(config)), model_(model), say_(std::move(say)) {
  if (config_.rank == 0) {  // what an ended training left unfinished
    std::error_code ignored;
    std::vector<fs::path> stale;
    for (fs::directory_iterator at(config_.directory, ignored), end; !ignored && at != end;
         at.increment(ignored)) {
      if (is_leftover(*at) && !is_spared(*at, config_.spared)) stale.push_back(at->path());
    }
    for (const fs::path& path : stale)
      fs::remove_all(path, ignored);
  }
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
void CheckpointWriter<T>::write(CheckpointPart<T> part) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !next_ && !busy_; });
  next_ = std::move(part);
  failed_rank_.reset();
  changed_.notify_all();
}

template <class T>
bool CheckpointWriter<T>::idle_within(std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest, [this] { return !next_ && !busy_; });
}

template <class T>
bool CheckpointWriter<T>::failed() {
  const std::lock_guard lock(mutex_);
  return !next_ && !busy_ && !last_;
}

template <class T>
void CheckpointWriter<T>::give_up(int failed_rank) {
  {
    const std::lock_guard lock(mutex_);
    failed_rank_ = failed_rank;
  }
  changed_.notify_all();
}

template <class T>
Result<> CheckpointWriter<T>::pause(const std::string& awaited) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPartPoll, [this] { return stop_ || failed_rank_; })) return {};
  if (stop_) return Error{ErrorCode::kCancelled, "the training ended before " + awaited};
  // Rank 0 says it for all.
  return Error{config_.rank == 0 ? ErrorCode::kSystem : ErrorCode::kCancelled,
               "rank " + std::to_string(*failed_rank_) + " could not write its part"};
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
    const CheckpointPart<T> part = std::move(*next_);
    next_.reset();
    busy_ = true;
    lock.unlock();
    auto done = write_part(part);
    report(checkpoint_name(part.state.position.step), done);
    lock.lock();
    last_ = std::move(done);
    busy_ = false;
    changed_.notify_all();
  }
}

template <class T>
Result<> CheckpointWriter<T>::write_optimizer(const CheckpointPart<T>& part, const std::string& folder) {
  std::vector<TensorView> tensors;
  for (const auto& vector : part.optimizer) {
    tensors.push_back({vector.name,
                       std::is_same_v<T, float> ? TensorType::kF32 : TensorType::kF64,
                       {static_cast<std::int64_t>(vector.values.size())},
                       std::as_bytes(std::span(vector.values))});
  }
  const std::string path =
      folder + "/" + optimizer_file_name(config_.parts == 1 ? 0 : config_.rank, config_.parts);
  auto done = write_safetensors(path + ".part", tensors,
                                {{"begin", std::to_string(part.begin)},
                                 {"end", std::to_string(part.end)},
                                 {"total", std::to_string(part.total)}});
  if (!done) return done;
  return rename_to(path + ".part", path);  // from now on rank 0 counts it
}

template <class T>
Result<> CheckpointWriter<T>::await_parts(const std::string& folder) {
  const auto deadline = std::chrono::steady_clock::now() + config_.part_timeout;
  for (int part = 0; part < config_.parts;) {
    std::error_code ignored;
    if (fs::exists(folder + "/" + optimizer_file_name(part, config_.parts), ignored)) {
      ++part;
      continue;
    }
    if (fs::exists(folder + "/failed-" + std::to_string(part), ignored)) {
      return Error{ErrorCode::kSystem, "rank " + std::to_string(part) + " could not write its part"};
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return Error{ErrorCode::kTimeout, "the part of rank " + std::to_string(part) +
                                            " did not come; do all nodes share " + config_.directory + "?"};
    }
    // Another node's file: there is nothing to wait on but the end.
    auto done = pause("the part of rank " + std::to_string(part) + " was there");
    if (!done) return done;
  }
  return {};
}

template <class T>
Result<> CheckpointWriter<T>::write_whole(const CheckpointPart<T>& part, const std::string& folder,
                                          const std::string& name) {
  std::error_code failed;
  if (!fs::create_directory(folder, failed)) return system_error(failed.value(), "create " + folder);
  if (auto done = write_optimizer(part, folder); !done) return done;
  const ModelState<T> model(model_, part.parameters, part.running,
                            static_cast<std::int64_t>(part.state.position.step));
  auto done = write_safetensors(folder + "/model.safetensors", model.tensors(),
                                {{"format", "pt"}, {"model", part.state.model}});
  if (done) done = write_text(folder + "/state.json", to_json(part.state));
  if (done) done = await_parts(folder);
  if (done) done = sync_directory(folder);
  if (!done) return done;
  const std::string path = config_.directory + "/" + name;
  // Another training may have come by here; a directory that is no checkpoint is somebody's own.
  if (fs::exists(path + "/state.json", failed)) fs::remove_all(path, failed);
  done = rename_to(folder, path);
  return done ? sync_directory(config_.directory) : done;
}

template <class T>
Result<> CheckpointWriter<T>::write_part(const CheckpointPart<T>& part) {
  const std::string name = checkpoint_name(part.state.position.step);
  const std::string folder = config_.directory + "/.tmp-" + config_.nonce + "-" + name;
  std::error_code ignored;
  if (config_.rank == 0) {
    auto done = write_whole(part, folder, name);
    if (!done) fs::remove_all(folder, ignored);
    if (done) remove_old(part.state.position.step);
    return done;
  }
  const auto deadline = std::chrono::steady_clock::now() + config_.part_timeout;
  while (!fs::exists(folder, ignored)) {
    if (std::chrono::steady_clock::now() > deadline) {
      return Error{ErrorCode::kTimeout,
                   folder + " did not appear; do all nodes share " + config_.directory + "?"};
    }
    if (auto done = pause(folder + " appeared"); !done) return done;
  }
  auto done = write_optimizer(part, folder);
  if (!done && !fs::exists(folder, ignored))
    return Error{ErrorCode::kCancelled, "rank 0 could not write its part"};
  if (!done) {
    const std::string mark = folder + "/failed-" + std::to_string(config_.rank);
    UniqueFd(::open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  }
  return done;
}

template <class T>
void CheckpointWriter<T>::remove_old(std::uint64_t step) {
  auto names = list_checkpoints(config_.directory);
  std::erase_if(names, [step](const std::string& name) { return *checkpoint_step(name) > step; });
  std::error_code ignored;
  for (std::size_t i = 0; i + static_cast<std::size_t>(config_.keep) < names.size(); ++i) {
    // Half of a checkpoint must never bear a checkpoint's name.
    const std::string gone = config_.directory + "/.tmp-" + config_.nonce + "-old-" + names[i];
    if (rename_to(config_.directory + "/" + names[i], gone)) fs::remove_all(gone, ignored);
  }
}

template <class T>
void CheckpointWriter<T>::report(const std::string& name, const Result<>& done) {
  if (done) {
    if (failing_ && config_.rank == 0) say_("checkpoint " + name + " written: checkpoints succeed again");
    failing_ = false;
    return;
  }
  const bool ended = done.error().code == ErrorCode::kCancelled;
  if (failing_ || (ended && config_.rank != 0)) return;  // an end is said once, all ranks see it
  failing_ = true;
  const auto names = list_checkpoints(config_.directory);
  say_("checkpoint " + name + " not written: " + done.error().text + (ended ? "; " : "; training goes on, ") +
       (names.empty() ? "without a checkpoint so far" : "the last good one is " + names.back()));
}

template class CheckpointWriter<float>;
template class CheckpointWriter<double>;

}  // namespace ddp::train
