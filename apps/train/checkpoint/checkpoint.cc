#include "apps/train/checkpoint/checkpoint.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
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

namespace ddp::train {

namespace {

constexpr int kFormat = 2;
constexpr const char* kState = "/state.json";
constexpr const char* kModel = "/model.safetensors";
constexpr const char* kOptimizer = "/optimizer.safetensors";
constexpr const char* kFiles[] = {kState, kModel, kOptimizer};
/// CRC-32 of all other entries, without white space.
constexpr const char* kOwnCrc = "state_crc32";

template <class... Parts>
Error wrong(const std::string& path, const Parts&... what) {
  return usage_error(path, ": ", what...);
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
    return concat("segment_step ", at.segment_step, " in step ", at.step, " of the first segment");
  }
  if (at.segment_begin >= state.samples) {
    return concat("segment_begin ", at.segment_begin, " of ", state.samples, " samples");
  }
  const std::uint64_t per_step = static_cast<std::uint64_t>(state.batch_size) *
                                 static_cast<std::uint64_t>(state.accumulate) *
                                 static_cast<std::uint64_t>(state.world_size);
  const std::uint64_t steps = (state.samples - at.segment_begin + per_step - 1) / per_step;
  if (at.segment_step > std::min(steps, at.step)) {
    return concat("segment_step ", at.segment_step, " where a segment has ", steps);
  }
  if (state.optimizer_steps < 0 || static_cast<std::uint64_t>(state.optimizer_steps) > at.step)
    return concat("optimizer_steps ", state.optimizer_steps, " in step ", at.step);
  return "";
}

/// Parsing and dumping reproduces what was written: the order is kept, and a number has all digits that it
/// needs to be read back as the same.
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
    return wrong(path, "is damaged or does not belong to this checkpoint: its CRC-32 is ",
                 crc32_text(file->crc32()), ", state.json has ", crc32_text(crc));
  }
  if (const std::string name = file->first_not_finite(); !name.empty())
    return wrong(path, "tensor ", name, " has a number that is not finite");
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
  // A whole file of another format is refused. A damaged one is not, so that --resume auto passes over it.
  if (format != json.end() && *format != kFormat && has_own_crc(json)) {
    return error_of(ErrorCode::kRefused, path, ": is of format ", format->dump(),
                    " and this train reads format ", kFormat, "; use the version of train that wrote it");
  }
  if (format == json.end() || *format != kFormat) {
    return wrong(path, "is of format ", format == json.end() ? "none" : format->dump(),
                 " and this train reads format ", kFormat, "; use the version of train that wrote it");
  }
  CheckpointState state;
  std::string missing;
  const auto read_entry = [&](const char* key, auto& value) {
    const auto found = json.find(key);
    using Value = std::decay_t<decltype(value)>;
    const bool fits = found != json.end() && is_of<Value>(*found);
    if (fits) {
      value = found->template get<Value>();
    } else if (missing.empty()) {
      missing = key;
    }
  };
  for_entries(state, read_entry);
  // The first checkpoints of this format lack both.
  if (json.contains("mlp_width")) read_entry("mlp_width", state.mlp_width);
  if (json.contains("mlp_depth")) read_entry("mlp_depth", state.mlp_depth);
  std::uint32_t crc = 0;
  read_entry(kOwnCrc, crc);
  if (!missing.empty()) return wrong(path, "\"", missing, "\" is missing or has the wrong type");
  if (state.world_size < 1 || state.batch_size < 1 || state.accumulate < 1)
    return wrong(path, "world_size, batch_size and accumulate must be at least 1");
  const std::string outside = out_of_range(state);
  if (!outside.empty()) return wrong(path, "the values are invalid: ", outside);
  json.erase(kOwnCrc);
  if (const std::uint32_t own = crc32_of_json(json); own != crc) {
    return wrong(path, "is damaged: its CRC-32 is ", crc32_text(own), " and ", crc32_text(crc),
                 " was written");
  }
  return state;
}

TrainingPosition position_after(const CheckpointState& state, int world_size, const BatchPlan& plan) {
  TrainingPosition position = state.position;
  if (world_size == state.world_size && plan.batch_size == state.batch_size &&
      plan.accumulate == state.accumulate)
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
  // By number: from step 100,000,000 on, names are longer.
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
    if (found == file.tensors().end()) return wrong(file.path(), "has no tensor ", name);
    if (file.count(found->second) != size) {
      return wrong(file.path(), "tensor ", name, " has ", file.count(found->second), " numbers for ", size,
                   " parameters");
    }
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      return wrong(file.path(), "has a tensor ", name, ", which this optimizer does not have");
  }
  return {};
}

}  // namespace ddp::train
