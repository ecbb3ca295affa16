#include "apps/train/options/equal_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>

#include "apps/train/collectives/shared_outcome.h"

namespace ddp::train {

namespace {

std::string taken_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string line(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

void add_hyperparameters(const TrainOptions& options, EqualOptions& list) {
  list.push_back({"--optimizer", options.optimizer.kind == OptimizerKind::kSgd ? "sgd" : "adamw"});
  list.push_back({"--lr", value_text(options.lr.peak)});
  list.push_back({"--lr-schedule", options.lr.shape == LrShape::kConstant ? "constant" : "cosine"});
  list.push_back({"--warmup-steps", std::to_string(options.lr.warmup_steps)});
  list.push_back({"--momentum", value_text(options.optimizer.momentum)});
  list.push_back({"--beta1", value_text(options.optimizer.beta1)});
  list.push_back({"--beta2", value_text(options.optimizer.beta2)});
  list.push_back({"--weight-decay", value_text(options.optimizer.weight_decay)});
  list.push_back({"--clip-value", value_text(options.clip_value)});
  list.push_back({"--clip-norm", value_text(options.clip_norm)});
  list.push_back({"--sync-bn", given_text(options.sync_bn)});
}

const char* dtype_text(Dtype dtype) {
  return dtype == Dtype::kBfloat16 ? "bfloat16" : dtype == Dtype::kFloat64 ? "float64" : "float32";
}

}  // namespace

std::string value_text(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

const char* comm_text(CommKind comm) {
  switch (comm) {
    case CommKind::kAuto:
      return "auto";
    case CommKind::kTcp:
      return "tcp";
    case CommKind::kShm:
      return "shm";
    case CommKind::kNccl:
      return "nccl";
  }
  return "?";
}

EqualOptions equal_options(const TrainOptions& options, const DataSplit& data) {
  EqualOptions list{{"--model", options.model == ModelKind::kMlp ? "mlp" : "convnet"},
                    {"--mlp-width", std::to_string(options.mlp_width)},
                    {"--mlp-depth", std::to_string(options.mlp_depth)},
                    {"the number of training images", std::to_string(data.training.size())},
                    {"the number of test images", std::to_string(data.test.size())},
                    {"--epochs", std::to_string(options.epochs)},
                    {"--max-steps", std::to_string(options.max_steps)},
                    {"--batch-size", std::to_string(options.batch_size)},
                    {"--accumulate", std::to_string(options.accumulate)},
                    {"--seed", std::to_string(options.seed)},
                    {"--device", options.device == DeviceKind::kGpu ? "gpu" : "cpu"},
                    {"--dtype", dtype_text(options.dtype)}};
  add_hyperparameters(options, list);
  list.push_back({"--bucket-cap-mb", value_text(options.bucket_cap_mb)});
  list.push_back({"--first-bucket-mb", value_text(options.first_bucket_mb)});
  list.push_back({"--on-peer-loss", options.rejoin ? "rejoin" : "exit"});
  list.push_back({"--zero", options.zero ? "1" : "0"});
  list.push_back({"--sync-every-inter", std::to_string(options.sync_every_inter)});
  list.push_back({"--init-from", given_text(!options.init_from.empty())});
  list.push_back({"--export", given_text(!options.export_to.empty())});
  list.push_back({"--checkpoint-dir", given_text(!options.checkpoint_dir.empty())});
  list.push_back({"--checkpoint-every", std::to_string(options.checkpoint_every)});
  list.push_back({"--resume", options.resume.empty()     ? "not given"
                              : options.resume == "auto" ? "auto"
                                                         : "a path"});
  list.push_back({"--profile", given_text(!options.profile.empty())});
  return list;
}

std::string to_text(const EqualOptions& options) {
  std::string text;
  for (const EqualOption& option : options)
    text += option.name + '\n' + option.value + '\n';
  return text;
}

std::string difference(const EqualOptions& mine, int rank, std::string_view text_of_other, int other) {
  const std::string of_other = "rank " + std::to_string(other);
  for (const EqualOption& option : mine) {
    const std::string name = taken_line(text_of_other);
    const std::string value = taken_line(text_of_other);
    if (name != option.name) {
      return "rank " + std::to_string(rank) + " has other options than " + of_other +
             "; check that both run the same version of train";
    }
    if (value != option.value) {
      return name + " is " + option.value + " on rank " + std::to_string(rank) + " and " + value + " on " +
             of_other + "; give all ranks the same value";
    }
  }
  return "";
}

Result<> check_equal(Communicator& world, const EqualOptions& mine, std::optional<int> from) {
  const int other = from.value_or(0);
  std::string text = to_text(mine);
  std::uint64_t size = text.size();
  if (auto done = world.broadcast(std::as_writable_bytes(std::span(&size, 1)), other); !done) return done;
  text.resize(size);
  if (auto done = world.broadcast(std::as_writable_bytes(std::span(text)), other); !done) return done;
  const std::string differs = difference(mine, world.rank(), text, other);
  const auto own = differs.empty() ? Result<>() : Error{ErrorCode::kUsage, differs};
  return from ? own : share_first_failure(world, own);
}

}  // namespace ddp::train
