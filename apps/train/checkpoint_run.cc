#include "apps/train/checkpoint_run.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/train/interrupt.h"
#include "apps/train/kernels/gradient_ops.h"
#include "apps/train/model_file.h"
#include "apps/train/shared_outcome.h"

namespace ddp::train {

namespace {

/// So often, while a checkpoint is waited for, each rank shows that it lives.
constexpr std::chrono::seconds kSign{1};

std::string optimizer_name(const Options& options) {
  return options.optimizer.kind == OptimizerKind::kSgd ? "sgd" : "adamw";
}

template <class T>
constexpr const char* kDtypeName = std::is_same_v<T, float> ? "float32" : "float64";

/// What this training and the checkpoint's cannot differ in.
std::string mismatch(const CheckpointState& mine, const CheckpointState& theirs) {
  const auto differ = [](const std::string& what, const std::string& here, const std::string& there) {
    return what + " is " + there + " there and " + here + " here";
  };
  if (mine.model != theirs.model) return differ("the model", mine.model, theirs.model);
  if (mine.dtype != theirs.dtype) return differ("--dtype", mine.dtype, theirs.dtype);
  if (mine.optimizer != theirs.optimizer) return differ("--optimizer", mine.optimizer, theirs.optimizer);
  if (mine.seed != theirs.seed)
    return differ("--seed", std::to_string(mine.seed), std::to_string(theirs.seed));
  if (mine.samples != theirs.samples) {
    return differ("the number of training images", std::to_string(mine.samples),
                  std::to_string(theirs.samples));
  }
  return "";
}

}  // namespace

template <class T>
void CheckpointRun<T>::attach(const Communicators& communicators, std::size_t samples) {
  world_ = communicators.world;
  interrupt_ = communicators.interrupt;
  samples_ = samples;
}

template <class T>
CheckpointState CheckpointRun<T>::current_state() const {
  CheckpointState state;
  state.model = std::string(trainer_.model().name());
  state.dtype = kDtypeName<T>;
  state.optimizer = optimizer_name(options_);
  state.world_size = world_->world_size();
  state.batch_size = options_.batch_size;
  state.accumulate = options_.accumulate;
  state.seed = options_.seed;
  state.samples = samples_;
  state.position = trainer_.position();
  state.optimizer_steps = trainer_.optimizer().steps();
  return state;
}

template <class T>
Result<> CheckpointRun<T>::read(Found& found) {
  std::string path = options_.resume;
  if (path == "auto") {
    if (list_checkpoints(options_.checkpoint_dir).empty()) return {};
    path = options_.checkpoint_dir;
  }
  const auto checkpoint = find_checkpoint(path);
  if (!checkpoint) return checkpoint.error();
  found.path = *checkpoint;
  std::ifstream file(found.path + "/state.json");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto state = parse_checkpoint_state(found.path + "/state.json", text);
  if (!state) return state.error();
  const std::string difference = mismatch(current_state(), *state);
  if (!difference.empty())
    return Error{ErrorCode::kUsage, "cannot go on from " + found.path + ": " + difference};
  const std::size_t running =
      trainer_.model().running_statistics().size() * static_cast<std::size_t>(state->world_size);
  if (state->running.size() != running) {
    return Error{ErrorCode::kUsage, found.path + "/state.json: has " + std::to_string(state->running.size()) +
                                        " running_statistics; " + std::to_string(state->world_size) +
                                        (state->world_size == 1 ? " rank" : " ranks") +
                                        " of this model have " + std::to_string(running)};
  }
  if (auto done = import_model<T>(found.path + "/model.safetensors", trainer_.model()); !done) return done;
  std::vector<std::string> names;
  for (const auto& one : trainer_.optimizer().state())
    names.emplace_back(one.name);
  auto optimizer = read_optimizer(found.path, trainer_.model().parameter_count(), names);
  if (!optimizer) return optimizer.error();
  found.optimizer = std::move(*optimizer);
  found.state = to_json(*state);
  return {};
}

template <class T>
Result<> CheckpointRun<T>::resume(const std::function<void(const std::string&)>& say) {
  if (options_.resume.empty()) return {};
  Found found;
  Result<> read_it;
  if (world_->rank() == 0) read_it = read(found);
  if (auto done = share_outcome(*world_, read_it); !done) return done;
  std::uint64_t size = found.state.size();
  auto done = world_->broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
  if (!done) return done;
  if (size == 0) return {};
  found.state.resize(size);
  if (done = world_->broadcast(std::as_writable_bytes(std::span(found.state)), 0); !done) return done;
  const auto state = parse_checkpoint_state("state.json", found.state);
  if (!state) return state.error();
  const std::string path = found.path;
  done = share(*state, std::move(found));
  if (!done) return done;
  trainer_.position() = go_on(*state, world_->world_size(), options_.batch_size, options_.accumulate);
  trainer_.optimizer().set_steps(state->optimizer_steps);
  written_step_ = state->position.step;
  if (world_->rank() == 0) {
    say("going on from " + path + ": step " + std::to_string(state->position.step) + ", epoch " +
        std::to_string(trainer_.position().epoch + 1) + ", " + std::to_string(state->world_size) +
        (state->world_size == 1 ? " rank" : " ranks") + " then, " + std::to_string(world_->world_size()) +
        " now");
  }
  return {};
}

template <class T>
Result<> CheckpointRun<T>::share(const CheckpointState& state, Found found) {
  if (auto done = trainer_.share_weights(); !done) return done;
  // Each rank's own running statistics, where there are as many ranks as then; else the mean is in the model.
  const auto running = trainer_.model().running_statistics();
  if (state.world_size == world_->world_size() &&
      state.running.size() == running.size() * world_->world_size()) {
    const double* mine = state.running.data() + running.size() * static_cast<std::size_t>(world_->rank());
    std::transform(mine, mine + running.size(), running.begin(), [](double v) { return static_cast<T>(v); });
  }
  const std::size_t total = trainer_.model().parameter_count();
  const GradientBucket part = trainer_.own_part();
  for (const auto& one : trainer_.optimizer().state()) {
    std::vector<double>& whole = found.optimizer[std::string(one.name)];
    whole.resize(total);
    if (auto done = world_->broadcast(std::as_writable_bytes(std::span(whole)), 0); !done) return done;
    for (std::size_t i = part.begin; i < std::min(part.end, total); ++i)
      one.values[i - part.begin] = static_cast<T>(whole[i]);
  }
  return {};
}

template <class T>
Result<std::uint64_t> CheckpointRun<T>::agree(std::uint64_t mine) {
  auto done = world_->broadcast(std::as_writable_bytes(std::span(&mine, 1)), 0);
  if (!done) return done.error();
  return mine;
}

template <class T>
Result<> CheckpointRun<T>::make_directory(const std::string& proof) {
  const auto names = list_checkpoints(options_.checkpoint_dir);
  const std::uint64_t begin = trainer_.position().step;
  if (!names.empty() && *checkpoint_step(names.back()) > begin) {
    return Error{ErrorCode::kUsage, "--checkpoint-dir " + options_.checkpoint_dir + " holds " + names.back() +
                                        " of another training, while this one begins after step " +
                                        std::to_string(begin) +
                                        "; give another --checkpoint-dir, go on from there with --resume "
                                        "auto, or remove the later checkpoints"};
  }
  std::error_code failed;
  std::filesystem::create_directories(options_.checkpoint_dir, failed);
  std::ofstream file(proof);
  if (!file.flush())
    return Error{ErrorCode::kUsage, "cannot write into --checkpoint-dir " + options_.checkpoint_dir};
  return {};
}

template <class T>
Result<> CheckpointRun<T>::prepare() {
  if (options_.checkpoint_dir.empty()) return {};
  std::random_device random;
  const auto nonce = agree(std::uint64_t{random()} << 32 | random());
  if (!nonce) return nonce.error();
  const std::string nonce_text = std::to_string(*nonce);
  const std::string proof = options_.checkpoint_dir + "/.tmp-" + nonce_text;
  Result<> made;
  if (world_->rank() == 0) made = make_directory(proof);
  if (auto done = share_outcome(*world_, made); !done) return done;
  std::error_code ignored;
  const std::uint64_t blind[] = {writes() && !std::filesystem::exists(proof, ignored)};
  const auto all = world_->all_gather(blind);
  if (!all) return all.error();
  const auto first = std::find(all->begin(), all->end(), 1u);
  if (first != all->end()) {
    return Error{ErrorCode::kUsage, "rank " + std::to_string(first - all->begin()) +
                                        " does not see rank 0's files in " + options_.checkpoint_dir +
                                        ": with --zero 1 all nodes must share --checkpoint-dir"};
  }
  if (writes()) open_writer(nonce_text, {});
  return {};
}

template <class T>
void CheckpointRun<T>::open_writer(const std::string& nonce, std::vector<std::string> spared) {
  typename CheckpointWriter<T>::Config config;
  config.directory = options_.checkpoint_dir;
  config.nonce = nonce;
  config.rank = world_->rank();
  config.parts = options_.zero ? world_->world_size() : 1;
  config.keep = options_.checkpoint_keep;
  config.part_timeout = options_.comm_timeout;
  config.spared = std::move(spared);
  writer_ = std::make_unique<CheckpointWriter<T>>(config, trainer_.model(), [](const std::string& text) {
    std::fprintf(stderr, "train: %s\n", text.c_str());
  });
}

template <class T>
Result<> CheckpointRun<T>::prepare_again() {
  if (options_.checkpoint_dir.empty()) return {};
  // A rank that was rank 0 may still be writing.
  const bool busy = writer_ && !writer_->idle_within(std::chrono::milliseconds(0));
  const std::uint64_t mine[] = {busy ? std::stoull(writer_->nonce()) : 0};
  const auto nonces = world_->all_gather(mine);
  if (!nonces) return nonces.error();
  const std::uint64_t step = trainer_.position().step;
  const auto there = agree(world_->rank() == 0 && is_written(step));
  if (!there) return there.error();
  written_step_.reset();
  if (*there != 0) written_step_ = step;
  if (world_->rank() != 0 || writer_) return {};
  std::error_code ignored;
  std::filesystem::create_directories(options_.checkpoint_dir, ignored);  // else the first one says why
  std::vector<std::string> spared;
  for (const std::uint64_t nonce : *nonces)
    spared.push_back(std::to_string(nonce));
  std::random_device random;
  open_writer(std::to_string(std::uint64_t{random()} << 32 | random()), std::move(spared));
  return {};
}

template <class T>
bool CheckpointRun<T>::is_written(std::uint64_t step) const {
  const auto names = list_checkpoints(options_.checkpoint_dir);
  return std::find(names.begin(), names.end(), checkpoint_name(step)) != names.end();
}

template <class T>
Result<> CheckpointRun<T>::write() {
  if (options_.checkpoint_dir.empty() || written_step_ == trainer_.position().step) return {};
  trainer_.tell_phase("checkpoint");
  CheckpointPart<T> part;
  part.state = current_state();
  const auto running = trainer_.model().running_statistics();
  std::vector<std::uint64_t> bits(running.size());
  std::transform(running.begin(), running.end(), bits.begin(),
                 [](T value) { return std::bit_cast<std::uint64_t>(static_cast<double>(value)); });
  if (!bits.empty()) {
    const auto all = world_->all_gather(bits);
    if (!all) return all.error();
    std::transform(all->begin(), all->end(), std::back_inserter(part.state.running),
                   [](std::uint64_t word) { return std::bit_cast<double>(word); });
  }
  if (options_.zero) {
    if (auto done = await_writers(); !done) return done;
  }
  written_step_ = trainer_.position().step;
  if (!writes()) return {};
  const auto idle = [this](std::chrono::milliseconds longest) { return writer_->idle_within(longest); };
  if (auto free = through_within(idle, std::chrono::hours(24 * 365), interrupt_); !free) return free.error();
  if (world_->rank() == 0) {
    part.parameters.assign(trainer_.model().parameters().begin(), trainer_.model().parameters().end());
    part.running.assign(running.size(), T{});
    for (std::size_t i = 0; i < part.state.running.size(); ++i)
      part.running[i % running.size()] += static_cast<T>(part.state.running[i]);
    kernels::average<T>(part.running, T(1) / static_cast<T>(world_->world_size()));
  }
  const GradientBucket range = trainer_.own_part();
  part.total = trainer_.model().parameter_count();
  part.begin = std::min(range.begin, part.total);
  part.end = std::min(range.end, part.total);
  for (const auto& one : trainer_.optimizer().state()) {
    const auto first = one.values.begin();
    part.optimizer.push_back(
        {std::string(one.name), {first, first + static_cast<std::ptrdiff_t>(part.end - part.begin)}});
  }
  writer_->write(std::move(part));
  return {};
}

template <class T>
Result<> CheckpointRun<T>::await_writers() {
  const auto sign = std::min<std::chrono::milliseconds>(kSign, options_.comm_timeout / 4);
  for (;;) {
    trainer_.tell_phase("checkpoint");
    const auto idle = through_within(
        [this](std::chrono::milliseconds longest) { return !writer_ || writer_->idle_within(longest); }, sign,
        interrupt_);
    if (!idle) return idle.error();
    const std::uint64_t mine[] = {*idle, writer_ && writer_->failed()};
    const auto ranks = world_->all_gather(mine);
    if (!ranks) {
      Error lost = ranks.error();
      lost.text += " of the wait for a checkpoint";
      return lost;
    }
    bool all = true;
    for (std::size_t rank = 0; rank < ranks->size() / 2; ++rank) {
      all &= (*ranks)[2 * rank] != 0;
      // What it lacks does not come: a disk that is full takes no mark of the failure either.
      if ((*ranks)[2 * rank + 1] != 0 && writer_) writer_->give_up(static_cast<int>(rank));
    }
    if (all) return {};
  }
}

template <class T>
Result<> CheckpointRun<T>::finish() {
  if (auto done = write(); !done) return done;
  if (options_.checkpoint_dir.empty()) return {};
  if (auto done = await_writers(); !done) return done;
  Result<> last = writer_ ? writer_->wait() : Result<>();
  if (!last) {
    last = Error{ErrorCode::kSystem,
                 "the training is complete but its last checkpoint was not written: " + last.error().text};
  }
  last_outcome_ = share_outcome(*world_, last);
  return {};
}

template class CheckpointRun<float>;
template class CheckpointRun<double>;

}  // namespace ddp::train
