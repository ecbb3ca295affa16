#include "tests/sim/survivors_history.h"

#include <algorithm>
#include <map>

#include "apps/train/checkpoint/checkpoint.h"
#include "apps/train/schedule/schedule.h"

namespace ddp::sim {
namespace {

constexpr std::uint64_t kBeginning = 14695981039346656037U;

std::uint64_t fold(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 1099511628211U;
  return hash ^ (hash >> 29);
}

std::string step_text(const train::TrainingPosition& position) {
  return "step " + std::to_string(position.step + 1) + " of epoch " + std::to_string(position.epoch);
}

}  // namespace

TrainingState TrainingHistory::beginning() {
  return {kBeginning, {}, 0};
}

std::vector<std::uint32_t> TrainingHistory::samples_of(const TrainingState& state, int rank) {
  const train::TrainingPosition& at = state.position;
  const std::int64_t key =
      ((at.epoch * 1024 + static_cast<std::int64_t>(at.segment_begin)) * 64 + state.world_size) * 64 + rank;
  auto found = orders_.find(key);
  if (found == orders_.end()) {
    if (orders_.size() > 4096) orders_.clear();
    train::SamplerConfig config;
    config.samples = samples_;
    config.world_size = state.world_size;
    config.rank = rank;
    config.seed = seed_;
    config.begin = at.segment_begin;
    found = orders_.emplace(key, *train::sample_order(config, at.epoch)).first;
  }
  const std::vector<std::uint32_t>& mine = found->second;
  const std::size_t size = static_cast<std::size_t>(batch_size_);
  const std::size_t first = std::min(mine.size(), at.segment_step * size);
  const std::size_t last = std::min(mine.size(), first + size);
  return {mine.begin() + static_cast<std::ptrdiff_t>(first),
          mine.begin() + static_cast<std::ptrdiff_t>(last)};
}

std::uint64_t TrainingHistory::steps_in_segment(const TrainingState& state) const {
  train::SamplerConfig config;
  config.samples = samples_;
  config.world_size = state.world_size;
  config.begin = state.position.segment_begin;
  const auto size = static_cast<std::uint64_t>(batch_size_);
  return (train::samples_per_rank(config) + size - 1) / size;
}

TrainingState TrainingHistory::step(const TrainingState& before,
                                    const std::vector<std::vector<std::uint32_t>>& samples) {
  Step made{before.hash, before.position, before.world_size, {}};
  TrainingState after = before;
  after.hash = fold(after.hash, ++after.position.step);
  for (const auto& part : samples) {
    for (const std::uint32_t sample : part) {
      after.hash = fold(after.hash, sample);
      made.samples.push_back(sample);
    }
  }
  if (++after.position.segment_step >= steps_in_segment(before)) {
    ++after.position.epoch;
    after.position.segment_begin = after.position.segment_step = 0;
  }
  ++steps_;
  tree_.insert_or_assign(after.hash, std::move(made));
  return after;
}

TrainingState TrainingHistory::resplit(TrainingState state, int world_size) const {
  train::CheckpointState checkpoint;
  checkpoint.world_size = state.world_size == 0 ? world_size : state.world_size;
  checkpoint.batch_size = batch_size_;
  checkpoint.samples = samples_;
  checkpoint.position = state.position;
  state.position = train::position_after(checkpoint, world_size, {batch_size_, 1});
  state.world_size = world_size;
  return state;
}

std::optional<std::string> TrainingHistory::wrong_with(std::uint64_t hash, std::int64_t epochs) const {
  struct Epoch {
    std::vector<int> used;
    std::map<std::uint64_t, int> segments;  ///< its world size, by the segment's start
  };
  std::map<std::int64_t, Epoch> seen;
  std::optional<std::uint64_t> number;
  for (std::uint64_t at = hash; at != kBeginning;) {
    const auto found = tree_.find(at);
    if (found == tree_.end()) return "a state that no step has led to";
    const Step& step = found->second;
    if (number && step.at.step + 1 != *number) return "no step leads to " + step_text(step.at);
    number = step.at.step;
    Epoch& epoch = seen[step.at.epoch];
    epoch.used.resize(samples_);
    for (const std::uint32_t sample : step.samples)
      ++epoch.used[sample];
    epoch.segments[step.at.segment_begin] = step.world_size;
    at = step.before;
  }
  if (number.value_or(0) != 0) return "its first step is not the first";
  for (std::int64_t i = 0; i < epochs; ++i) {
    const Epoch& epoch = seen[i];
    int missed = 0, again = 0, padding = 0;
    for (const int times : epoch.used) {
      missed += times == 0;
      again += std::max(0, times - 1);
    }
    for (const auto& segment : epoch.segments)
      padding += segment.second - 1;
    if (epoch.used.empty() || missed > 0)
      return "epoch " + std::to_string(i) + " misses " + std::to_string(missed) + " samples";
    if (again > padding) {
      return "epoch " + std::to_string(i) + " uses " + std::to_string(again) + " samples again, of which " +
             std::to_string(padding) + " may be padding";
    }
  }
  return {};
}

}  // namespace ddp::sim
