#include "apps/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <span>
#include <system_error>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "apps/train/safetensors.h"
#include "apps/train/sampler.h"

namespace ddp::train {

namespace {

constexpr int kFormat = 1;

Error wrong(const std::string& path, const std::string& what) {
  return Error{ErrorCode::kUsage, path + ": " + what};
}

template <class Integer>
bool is_within(const nlohmann::json& number) {
  constexpr auto kMost = std::numeric_limits<Integer>::max();
  if (number.is_number_unsigned()) return number.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMost);
  return number.is_number_integer() &&
         number.get<std::int64_t>() >= std::int64_t{std::numeric_limits<Integer>::min()};
}

/// Which number is not what a training could have; nothing: none. What passes cannot overflow in used().
std::string out_of_range(const CheckpointState& state) {
  constexpr std::uint64_t kMostSteps = 1'000'000'000'000'000;
  const TrainingPosition& at = state.position;
  if (state.samples == 0 || state.samples >= kMaxSamples) return "samples " + std::to_string(state.samples);
  if (state.batch_size > 1 << 20 || state.accumulate > 1 << 20 || state.world_size > 1 << 20)
    return "world_size, batch_size or accumulate of more than " + std::to_string(1 << 20);
  if (at.step > kMostSteps) return "step " + std::to_string(at.step);
  if (at.epoch < 0 || at.epoch > 1'000'000) return "epoch " + std::to_string(at.epoch);
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

/// The optim files of a checkpoint, in the order of their parts.
std::vector<std::string> optimizer_files(const std::string& checkpoint) {
  std::vector<std::string> paths;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(checkpoint, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->path().filename().string().starts_with("optim-")) paths.push_back(at->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Nothing: the file holds just `names`.
std::string wrong_names(const Safetensors& file, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!file.tensors().contains(name)) return "has no tensor " + name;
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      return "has a tensor " + name + ", which this optimizer has not";
  }
  return "";
}

}  // namespace

std::uint64_t CheckpointState::used() const {
  return position.segment_begin + position.segment_step * static_cast<std::uint64_t>(batch_size) *
                                      static_cast<std::uint64_t>(accumulate) *
                                      static_cast<std::uint64_t>(world_size);
}

std::string to_json(const CheckpointState& state) {
  const nlohmann::ordered_json json{{"format", kFormat},
                                    {"step", state.position.step},
                                    {"epoch", state.position.epoch},
                                    {"segment_begin", state.position.segment_begin},
                                    {"segment_step", state.position.segment_step},
                                    {"samples_used", std::min(state.used(), state.samples)},
                                    {"samples", state.samples},
                                    {"world_size", state.world_size},
                                    {"batch_size", state.batch_size},
                                    {"accumulate", state.accumulate},
                                    {"seed", state.seed},
                                    {"model", state.model},
                                    {"dtype", state.dtype},
                                    {"optimizer", state.optimizer},
                                    {"optimizer_steps", state.optimizer_steps},
                                    {"running_statistics", state.running}};
  return json.dump(1) + "\n";
}

Result<CheckpointState> parse_checkpoint_state(const std::string& path, const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return wrong(path, "is no JSON object; was it cut?");
  const auto format = json.find("format");
  if (format == json.end() || *format != kFormat)
    return wrong(path, "is of another format than " + std::to_string(kFormat));
  CheckpointState state;
  std::string missing;
  const auto take = [&](const char* key, auto& value) {
    const auto found = json.find(key);
    using Value = std::decay_t<decltype(value)>;
    const bool fits = found != json.end() && [&] {
      if constexpr (std::is_same_v<Value, std::string>) return found->is_string();
      if constexpr (std::is_same_v<Value, std::vector<double>>) {
        return found->is_array() &&
               std::all_of(found->begin(), found->end(), [](const auto& one) { return one.is_number(); });
      }
      if constexpr (std::is_unsigned_v<Value>) return found->is_number_unsigned();
      if constexpr (std::is_integral_v<Value>) return is_within<Value>(*found);
      return false;
    }();
    if (fits) {
      value = found->template get<Value>();
    } else if (missing.empty()) {
      missing = key;
    }
  };
  take("step", state.position.step);
  take("epoch", state.position.epoch);
  take("segment_begin", state.position.segment_begin);
  take("segment_step", state.position.segment_step);
  take("samples", state.samples);
  take("world_size", state.world_size);
  take("batch_size", state.batch_size);
  take("accumulate", state.accumulate);
  take("seed", state.seed);
  take("model", state.model);
  take("dtype", state.dtype);
  take("optimizer", state.optimizer);
  take("optimizer_steps", state.optimizer_steps);
  take("running_statistics", state.running);
  if (!missing.empty()) return wrong(path, "\"" + missing + "\" is missing or of another kind");
  if (state.world_size < 1 || state.batch_size < 1 || state.accumulate < 1)
    return wrong(path, "world_size, batch_size and accumulate begin with 1");
  const std::string outside = out_of_range(state);
  if (!outside.empty()) return wrong(path, "no training has written this: " + outside);
  return state;
}

TrainingPosition go_on(const CheckpointState& state, int world_size, int batch_size, int accumulate) {
  TrainingPosition position = state.position;
  if (world_size == state.world_size && batch_size == state.batch_size && accumulate == state.accumulate)
    return position;
  position.segment_begin = state.used();
  position.segment_step = 0;
  if (position.segment_begin >= state.samples) {  // the epoch was over
    ++position.epoch;
    position.segment_begin = 0;
  }
  return position;
}

std::string checkpoint_name(std::uint64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08llu", static_cast<unsigned long long>(step));
  return text;
}

std::optional<std::uint64_t> checkpoint_step(const std::string& name) {
  if (!name.starts_with("step-")) return std::nullopt;
  std::uint64_t step = 0;
  const auto read = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  // Nor is one what another program would write: with a sign, fewer digits or an ending.
  if (read.ec != std::errc() || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

std::string optimizer_file_name(int part, int parts) {
  char text[48];
  std::snprintf(text, sizeof text, "optim-%05d-of-%05d.safetensors", part, parts);
  return text;
}

std::vector<std::string> list_checkpoints(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    if (checkpoint_step(name) && std::filesystem::is_regular_file(at->path() / "state.json", ignored))
      names.push_back(name);
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return checkpoint_step(a) < checkpoint_step(b);
  });
  return names;
}

Result<std::string> find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path + "/state.json", ignored)) return path;
  const auto names = list_checkpoints(path);
  if (names.empty()) return wrong(path, "is no checkpoint and holds none (step-…)");
  return path + "/" + names.back();
}

Result<std::map<std::string, std::vector<double>>> read_optimizer(const std::string& checkpoint,
                                                                  std::size_t total,
                                                                  const std::vector<std::string>& names) {
  std::map<std::string, std::vector<double>> vectors;
  for (const std::string& name : names)
    vectors[name].resize(total);
  std::size_t covered = 0;
  for (const std::string& path : optimizer_files(checkpoint)) {
    const auto file = Safetensors::read(path);
    if (!file) return file.error();
    const auto place = [&](const char* key) {
      const auto found = file->metadata().find(key);
      return found == file->metadata().end() ? std::string::npos
                                             : static_cast<std::size_t>(std::atoll(found->second.c_str()));
    };
    const std::size_t begin = place("begin"), stop = place("end");
    if (begin > stop || stop > total || place("total") != total)
      return wrong(path,
                   "begin, end and total do not fit a model of " + std::to_string(total) + " parameters");
    if (begin != covered) {  // the files' order is the parts' order
      return wrong(path, "begins with parameter " + std::to_string(begin) +
                             " where the part before ends with " + std::to_string(covered) +
                             "; is it another part's copy?");
    }
    if (const std::string mistake = wrong_names(*file, names); !mistake.empty()) return wrong(path, mistake);
    for (auto& [name, vector] : vectors) {
      if (file->count(file->tensors().at(name)) != stop - begin ||
          !file->copy<double>(name, 0, std::span(vector).subspan(begin, stop - begin)))
        return wrong(path, "tensor " + name + " is not as long as its part");
    }
    covered = stop;
  }
  if (covered != total) {
    return wrong(checkpoint, "its optim files hold " + std::to_string(covered) + " of " +
                                 std::to_string(total) + " parameters' state");
  }
  return vectors;
}

}  // namespace ddp::train
