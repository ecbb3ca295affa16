#include "apps/train/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "apps/train/data/hash.h"
#include "base/files.h"
#include "base/result.h"
#include "base/text.h"
#include "base/unique_fd.h"

namespace ddp::train {

namespace {

constexpr int kFormat = 2;
constexpr const char* kState = "/state.json";
constexpr const char* kModel = "/model.safetensors";
constexpr const char* kOptimizer = "/optimizer.safetensors";
constexpr const char* kFiles[] = {kState, kModel, kOptimizer};
/// CRC-32 of all other entries, without white space.
constexpr const char* kOwnCrc = "state_crc32";

Error wrong(const std::string& path, const std::string& what) {
  return Error{ErrorCode::kUsage, path + ": " + what};
}

template <class Integer>
bool is_within(const nlohmann::ordered_json& number) {
  constexpr auto kMost = std::numeric_limits<Integer>::max();
  if (number.is_number_unsigned()) return number.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMost);
  return number.is_number_integer() &&
         number.get<std::int64_t>() >= static_cast<std::int64_t>(std::numeric_limits<Integer>::min());
}

template <class Value>
bool is_of(const nlohmann::ordered_json& json) {
  if constexpr (std::is_same_v<Value, std::string>) return json.is_string();
  if constexpr (std::is_same_v<Value, double>) return json.is_number();
  if constexpr (std::is_same_v<Value, std::vector<double>>) {
    return json.is_array() &&
           std::all_of(json.begin(), json.end(), [](const auto& one) { return one.is_number(); });
  }
  if constexpr (std::is_integral_v<Value>) return is_within<Value>(json);
  return false;
}

/// Returns the number that no training could have; empty: none. Accepted numbers cannot overflow in used().
std::string out_of_range(const CheckpointState& state) {
  constexpr std::uint64_t kMostSteps = 1'000'000'000'000'000;
  const TrainingPosition& at = state.position;
  if (state.samples == 0 || state.samples >= kMaxSamples) return "samples " + std::to_string(state.samples);
  if (state.batch_size > 1 << 20 || state.accumulate > 1 << 20 || state.world_size > 1 << 20)
    return "world_size, batch_size or accumulate of more than " + std::to_string(1 << 20);
  if (at.step > kMostSteps) return "step " + std::to_string(at.step);
  if (!(at.warmed_up >= 0 && at.warmed_up <= 1)) return "warmed_up outside of 0 to 1";
  if (at.epoch < 0 || at.epoch > 1'000'000) return "epoch " + std::to_string(at.epoch);
  if (at.epoch == 0 && at.segment_begin == 0 && at.segment_step != at.step) {
    return "segment_step " + std::to_string(at.segment_step) + " in step " + std::to_string(at.step) +
           " of the first segment";
  }
  if (at.segment_begin >= state.samples) {
    return "segment_begin " + std::to_string(at.segment_begin) + " of " + std::to_string(state.samples) +
           " samples";
  }
  const std::uint64_t per_step = static_cast<std::uint64_t>(state.batch_size) *
                                 static_cast<std::uint64_t>(state.accumulate) *
                                 static_cast<std::uint64_t>(state.world_size);
  const std::uint64_t steps = (state.samples - at.segment_begin + per_step - 1) / per_step;
  if (at.segment_step > std::min(steps, at.step)) {
    return "segment_step " + std::to_string(at.segment_step) + " where a segment has " +
           std::to_string(steps);
  }
  if (state.optimizer_steps < 0 || static_cast<std::uint64_t>(state.optimizer_steps) > at.step)
    return "optimizer_steps " + std::to_string(state.optimizer_steps) + " in step " + std::to_string(at.step);
  return "";
}

std::uint32_t crc32_of_json(const nlohmann::ordered_json& json) {
  return crc32_of(std::as_bytes(std::span<const char>(json.dump())));
}

Result<std::string> read_state(const std::string& path) {
  constexpr std::uintmax_t kMost = std::uintmax_t{64} << 20;
  std::error_code failed;
  const std::uintmax_t size = std::filesystem::file_size(path, failed);
  if (failed) return system_error(failed.value(), "open " + path);
  if (size > kMost) return wrong(path, "is larger than 64 MiB: train did not write this file");
  std::string text(static_cast<std::size_t>(size), '\0');
  errno = 0;
  if (!std::ifstream(path).read(text.data(), static_cast<std::streamsize>(size)))
    return errno != 0 ? system_error(errno, "read " + path) : wrong(path, "cannot be read completely");
  return text;
}

/// Reads a file whose CRC-32 is in state.json.
Result<Safetensors> read_checked(const std::string& path, std::uint32_t crc,
                                 const Safetensors::CheckHeader& check) {
  auto file = Safetensors::read(path, check);
  if (!file) return file;
  if (file->crc32() != crc) {
    return wrong(path, "is damaged or does not belong to this checkpoint: its CRC-32 is " +
                           crc32_text(file->crc32()) + ", state.json has " + crc32_text(crc));
  }
  if (const std::string name = file->first_not_finite(); !name.empty())
    return wrong(path, "tensor " + name + " has a number that is not finite");
  return file;
}

/// Returns whether state.json, of any format, is unchanged since it was written.
bool has_own_crc(nlohmann::ordered_json json) {
  const auto found = json.find(kOwnCrc);
  if (found == json.end() || !found->is_number_unsigned()) return false;
  const auto crc = found->get<std::uint64_t>();
  json.erase(kOwnCrc);
  return crc32_of_json(json) == crc;
}

}  // namespace

std::uint64_t CheckpointState::used() const {
  return position.segment_begin + position.segment_step * static_cast<std::uint64_t>(batch_size) *
                                      static_cast<std::uint64_t>(accumulate) *
                                      static_cast<std::uint64_t>(world_size);
}

namespace {

/// Calls visit(key, value) for each entry of state.json, in the file's order.
template <class State, class Visit>
void for_entries(State& state, const Visit& visit) {
  visit("step", state.position.step);
  visit("epoch", state.position.epoch);
  visit("segment_begin", state.position.segment_begin);
  visit("segment_step", state.position.segment_step);
  visit("warmed_up", state.position.warmed_up);
  visit("samples", state.samples);
  visit("training_images_crc32", state.training_images);
  visit("training_labels_crc32", state.training_labels);
  visit("world_size", state.world_size);
  visit("batch_size", state.batch_size);
  visit("accumulate", state.accumulate);
  visit("seed", state.seed);
  visit("model", state.model);
  visit("dtype", state.dtype);
  visit("optimizer", state.optimizer);
  visit("optimizer_steps", state.optimizer_steps);
  visit("model_crc32", state.model_crc32);
  visit("optimizer_crc32", state.optimizer_crc32);
  visit("running_statistics", state.running);
}

}  // namespace

std::string to_json(const CheckpointState& state) {
  nlohmann::ordered_json json{{"format", kFormat}};
  for_entries(state, [&](std::string_view key, const auto& value) {
    if (key == "samples") json["samples_used"] = std::min(state.used(), state.samples);  // for people
    json[std::string(key)] = value;
  });
  if (state.mlp_width != 0) {
    json["mlp_width"] = state.mlp_width;
    json["mlp_depth"] = state.mlp_depth;
  }
  const std::uint32_t crc = crc32_of_json(json);
  json[kOwnCrc] = crc;
  return json.dump(1) + "\n";
}

Result<CheckpointState> parse_checkpoint_state(const std::string& path, const std::string& text) {
  auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) return wrong(path, "is not a JSON object; is it truncated?");
  const auto format = json.find("format");
  if (format != json.end() && *format != kFormat && has_own_crc(json)) {
    return Error{ErrorCode::kRefused, path + ": is of format " + format->dump() +
                                          " and this train reads format " + std::to_string(kFormat) +
                                          "; use the version of train that wrote it"};
  }
  if (format == json.end() || *format != kFormat) {
    return wrong(path, "is of format " + (format == json.end() ? "none" : format->dump()) +
                           " and this train reads format " + std::to_string(kFormat) +
                           "; use the version of train that wrote it");
  }
  CheckpointState state;
  std::string missing;
  const auto take = [&](const char* key, auto& value) {
    const auto found = json.find(key);
    using Value = std::decay_t<decltype(value)>;
    const bool fits = found != json.end() && is_of<Value>(*found);
    if (fits) {
      value = found->template get<Value>();
    } else if (missing.empty()) {
      missing = key;
    }
  };
  for_entries(state, take);
  // The first checkpoints of this format lack both.
  if (json.contains("mlp_width")) take("mlp_width", state.mlp_width);
  if (json.contains("mlp_depth")) take("mlp_depth", state.mlp_depth);
  std::uint32_t crc = 0;
  take(kOwnCrc, crc);
  if (!missing.empty()) return wrong(path, "\"" + missing + "\" is missing or has the wrong type");
  if (state.world_size < 1 || state.batch_size < 1 || state.accumulate < 1)
    return wrong(path, "world_size, batch_size and accumulate must be at least 1");
  const std::string outside = out_of_range(state);
  if (!outside.empty()) return wrong(path, "the values are invalid: " + outside);
  json.erase(kOwnCrc);
  if (const std::uint32_t own = crc32_of_json(json); own != crc) {
    return wrong(path,
                 "is damaged: its CRC-32 is " + crc32_text(own) + " and " + crc32_text(crc) + " was written");
  }
  return state;
}

TrainingPosition go_on(const CheckpointState& state, int world_size, int batch_size, int accumulate) {
  TrainingPosition position = state.position;
  if (world_size == state.world_size && batch_size == state.batch_size && accumulate == state.accumulate)
    return position;
  position.segment_begin = state.used();
  position.segment_step = 0;
  if (position.segment_begin >= state.samples) {  // the epoch was complete
    ++position.epoch;
    position.segment_begin = 0;
  }
  return position;
}

std::string checkpoint_name(std::uint64_t step) {
  return format_text("step-%08llu", static_cast<unsigned long long>(step));
}

std::optional<std::uint64_t> checkpoint_step(const std::string& name) {
  if (!name.starts_with("step-")) return std::nullopt;
  std::uint64_t step = 0;
  const auto read = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  // A name of another program is refused, too: with a sign, fewer digits or an ending.
  if (read.ec != std::errc() || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

bool is_checkpoint(const std::string& path) {
  return std::ranges::any_of(kFiles, [&path](const std::string& name) {
    std::error_code ignored;
    return std::filesystem::status(path + name, ignored).type() != std::filesystem::file_type::not_found;
  });
}

Result<std::vector<std::string>> list_checkpoints(const std::string& directory) {
  std::error_code failed;
  const auto paths = list_directory(directory, failed);
  if (failed && failed != std::errc::no_such_file_or_directory)
    return system_error(failed.value(), "read " + directory);
  std::vector<std::string> names;
  for (const auto& path : paths) {
    const std::string name = path.filename().string();
    if (checkpoint_step(name) && is_checkpoint(path.string())) names.push_back(name);
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return checkpoint_step(a) < checkpoint_step(b);
  });
  return names;
}

Result<std::string> find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path + kState, ignored)) return path;
  const auto names = DDP_TRY(list_checkpoints(path));
  if (!names.empty()) return path + "/" + names.back();
  if (!std::filesystem::exists(path, ignored)) return system_error(ENOENT, path);
  if (is_checkpoint(path)) return path;
  return wrong(path, "is not a checkpoint and contains none (step-…)");
}

Result<CheckpointState> read_checkpoint_state(const std::string& path) {
  const auto text = DDP_TRY(read_state(path + kState));
  return parse_checkpoint_state(path + kState, text);
}

Result<Checkpoint> read_checkpoint(const std::string& path, CheckpointState state,
                                   const Safetensors::CheckHeader& check_model,
                                   const Safetensors::CheckHeader& check_optimizer) {
  auto model = DDP_TRY(read_checked(path + kModel, state.model_crc32, check_model));
  auto optimizer = DDP_TRY(read_checked(path + kOptimizer, state.optimizer_crc32, check_optimizer));
  return Checkpoint{path, std::move(state), std::move(model), std::move(optimizer)};
}

Result<> check_optimizer(const Safetensors& file, std::size_t size, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto found = file.tensors().find(name);
    if (found == file.tensors().end()) return wrong(file.path(), "has no tensor " + name);
    if (file.count(found->second) != size) {
      return wrong(file.path(), "tensor " + name + " has " + std::to_string(file.count(found->second)) +
                                    " numbers for " + std::to_string(size) + " parameters");
    }
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      return wrong(file.path(), "has a tensor " + name + ", which this optimizer does not have");
  }
  return {};
}

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
  DDP_TRY(write_bytes(fd.get(), text, path));
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
  DDP_TRY(rename_to(to, aside));
  const Result<> done = rename_to(from, to);
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
      DDP_TRY(check_finite<T>({values}));
      vectors.push_back({vector.name,
                         std::is_same_v<T, float> ? TensorType::kF32 : TensorType::kF64,
                         {static_cast<std::int64_t>(values.size())},
                         std::as_bytes(values)});
    }
    return write_safetensors(folder + "/optimizer.safetensors", vectors, {});
  });
  CheckpointState state = content.state;
  const auto write_model = [&]() -> Result<std::uint32_t> {
    DDP_TRY(check_finite<T>({content.parameters.span(), content.running}));
    const ModelState<T> weights(model_, content.parameters.span(), content.running, content.batches);
    return write_safetensors(folder + "/model.safetensors", weights.tensors(),
                             {{"format", "pt"}, {"model", state.model}});
  };
  const auto model = write_model();
  const auto optimizer = DDP_TRY(optimizer_file.get());
  if (!model) return model.error();
  state.model_crc32 = *model;
  state.optimizer_crc32 = optimizer;
  DDP_TRY(write_text(folder + "/state.json", to_json(state)));
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
