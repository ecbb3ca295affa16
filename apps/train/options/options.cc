#include "apps/train/options/options.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <limits>
#include <span>

#include "apps/options/option_table.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/model.h"
#include "base/program.h"
#include "base/text.h"

namespace ddp::train {
namespace {

constexpr double kMany = 1e15;
constexpr char kOwnBatch[] = ": the GPU normalizes by its own rank's batch";
constexpr const char* kUsage =
    "usage: train [OPTION…]\n"
    "Trains a small model on (Fashion-)MNIST, data-parallel over the ranks that the environment names.\n"
    "Instead of training: train bench --help (measures the network between the ranks, as nccl-tests does),\n"
    "train health --help (tests each rank's device and the network between the ranks).\n";

/// Parses "RANK:STEP".
std::optional<InjectedNan> parse_injected_nan(std::string_view text) {
  const auto rank = parse_number<int>(take_field(text, ':'));
  const auto step = parse_number<std::uint64_t>(text);
  if (!rank || *rank < 0 || !step || *step == 0) return std::nullopt;
  return InjectedNan{*rank, *step};
}

/// A number below 1, since AdamW divides by 1 - beta.
OptionField beta_into(double& field) {
  const auto is_beta = [](std::string_view text) {
    const auto number = parse_number<double>(text);
    return number && *number >= 0 && *number < 1;
  };
  OptionField any = number_into(field, 0, 1);
  return {checked(is_beta, ": give a number of at least 0 and below 1", any.read), any.text};
}

void declare_evaluator(OptionTable& table, TrainOptions& options) {
  table.group("Instead of training",
              "`train bench` and `train health` are in [acceptance.md](acceptance.md).");
  table.value({.names = "--read-flight-recorder",
               .value = "DIR",
               .help = "analyze the files of --flight-recorder DIR: print which rank the others waited for",
               .details = "[Which rank do the others wait for?](train.md#which-rank-do-the-others-wait-for)",
               .completion = Completion::kDirectory},
              text_into(options.read_flight_recorder));
}

void declare_task(OptionTable& table, TrainOptions& options) {
  table.group("Model and data");
  table.value(
      {.names = "--data",
       .value = "DIR|synthetic|auto",
       .help = "directory with the MNIST or Fashion-MNIST files, or synthetic images; auto: "
               "/usr/share/datasets/fashion-mnist of any node, else synthetic",
       .details = "Every node needs the four IDX files of a directory, plain or .gz. With `auto` a node "
                  "without the files receives the images from another one. Debian's package "
                  "dataset-fashion-mnist has them.",
       .completion = Completion::kDirectory},
      text_into(options.data));
  table.value(
      {.names = "--limit",
       .value = "N",
       .help = "use only the first N training images (0: all); with --data synthetic, N may exceed 60000",
       .details = "N counts the images of all ranks together."},
      number_into(options.limit, 0, 1e12));
  table.choice<ModelKind>(
      {.names = "--model",
       .help = "network to train: a small ConvNet, or an MLP; auto: on GPUs an MLP with "
               "58 MiB of gradients, else the ConvNet",
       .details = "The ConvNet has two blocks of 5x5 convolution, batch normalization, "
                  "ReLU and max-pooling with 16 and 32 channels, and a linear layer. The "
                  "MLP of `auto` is that of `--model mlp --mlp-width 2560 --mlp-depth 3`.",
       .equal = true},
      options.model,
      {{"auto", ModelKind::kAuto}, {"convnet", ModelKind::kConvNet}, {"mlp", ModelKind::kMlp}});
  table.value({.names = "--mlp-width",
               .value = "N",
               .help = "width of the MLP's hidden layers",
               .equal = true,
               .only_with = {{"--model mlp"}}},
              number_into(options.mlp_width, 1, 65'536));
  table.value({.names = "--mlp-depth",
               .value = "N",
               .help = "number of the MLP's hidden layers",
               .details = "7 layers of width 2048 have 107 MB of gradients.",
               .equal = true,
               .only_with = {{"--model mlp"}}},
              number_into(options.mlp_depth, 1, 1'000));
  table.choice<DeviceKind>(
      {.names = "--device",
       .help = "where to compute; gpu: the GPU of LOCAL_RANK; auto: gpu if any rank sees one",
       .details = "A visible GPU that cannot be used is an error, and so is NCCL with several ranks. `gpu` "
                  "is an error if there is no GPU, or if the build has no code for it ([GPUs and "
                  "NCCL](train.md#gpus-and-nccl)).",
       .equal = true},
      options.device, device_words());
  table.choice<Dtype>(
      {.names = "--dtype",
       .help = "type of weights and arithmetic; bfloat16 has float32 master weights, and needs a GPU",
       .details = "`float64` is the reference for comparisons. With `bfloat16` a GPU stores activations and "
                  "a copy of the weights in two bytes.",
       .equal = true},
      options.dtype,
      {{"float32", Dtype::kFloat32}, {"float64", Dtype::kFloat64}, {"bfloat16", Dtype::kBfloat16}});
  table.choice<MatmulPrecision>(
      {.names = "--matmul-precision",
       .help = "of the MLP's float32 products on a GPU, as torch.set_float32_matmul_precision; high: TF32",
       .details = "Without cuBLASLt the own kernels compute in float32 with either ([GPUs and "
                  "NCCL](train.md#gpus-and-nccl)).",
       .equal = true,
       .not_with = {{{"--model convnet"}, "; it is for --model mlp"}},
       .only_with = {{"--dtype float32"}}},
      options.matmul_precision, {{"highest", MatmulPrecision::kHighest}, {"high", MatmulPrecision::kHigh}});
  table.value(
      {.names = "--epochs",
       .value = "N",
       .default_text = "1, or as many as make 150 steps on each rank",
       .help = "passes over the training images",
       .details = "The default has no more steps than one rank alone makes in an epoch. With `--limit` or "
                  "`--max-steps` it is 1.",
       .equal = true},
      number_into(options.epochs, 1, 1e6));
  table.value({.names = "--max-steps",
               .value = "N",
               .help = "end after step N (0: after the last epoch)",
               .equal = true},
              number_into(options.max_steps, 0, kMany));
  table.value({.names = "--batch-size", .value = "N", .help = "images per batch and rank", .equal = true},
              number_into(options.batch_size, 1, 16'384));
  table.value({.names = "--accumulate",
               .value = "N",
               .help = "batches per step; gradients are all-reduced in the last one only",
               .equal = true},
              number_into(options.accumulate, 1, 1e6));
  table.value({.names = "--seed", .value = "S", .help = "seed of weights and shuffling", .equal = true},
              number_into(options.seed, -9e18, 9e18));
  table.value({.names = "--threads",
               .value = "N",
               .help = "threads per rank; their number does not change the result by a bit"},
              number_into(options.threads, 1, 1'024));
  std::vector<std::pair<std::string, std::string>> kernel_words;
  for (const char* name : kernels::kKernelNames)
    kernel_words.emplace_back(name, name);
  table.choice<std::string>(
      {.names = "--kernels", .default_text = "the best of the processor", .help = "instruction set"},
      options.kernels, kernel_words);
}

void declare_hyperparameters(OptionTable& table, TrainOptions& options) {
  table.group("Hyperparameters");
  table.choice<OptimizerKind>({.names = "--optimizer", .help = "optimizer, as in torch.optim", .equal = true},
                              options.update.kind,
                              {{"sgd", OptimizerKind::kSgd}, {"adamw", OptimizerKind::kAdamw}});
  table.value({.names = "--lr",
               .value = "RATE",
               .default_text = "0.01; 0.1 for SGD and the MLP of --model auto",
               .help = "learning rate",
               .equal = true},
              number_into(options.lr.peak, 0, 1e38));
  table.choice<LrShape>(
      {.names = "--lr-schedule",
       .help = "learning rate after the warm-up; cosine: falls to zero at the end of the last epoch",
       .details = "As torch's `SequentialLR` of `LinearLR(start_factor=1/N, total_iters=N-1)`, where N is "
                  "`--warmup-steps`, and `CosineAnnealingLR`, with progress counted in samples.",
       .equal = true},
      options.lr.shape, {{"constant", LrShape::kConstant}, {"cosine", LrShape::kCosine}});
  table.value({.names = "--warmup-steps",
               .value = "N",
               .help = "warm-up steps, in which the learning rate rises linearly",
               .equal = true},
              number_into(options.lr.warmup_steps, 0, kMany));
  table.value({.names = "--momentum",
               .value = "M",
               .help = "weight of the earlier updates in each update",
               .equal = true,
               .only_with = {{"--optimizer sgd"}}},
              number_into(options.update.momentum, 0, 1));
  table.value({.names = "--beta1",
               .value = "B",
               .help = "weight of the earlier gradients in their average, below 1",
               .equal = true,
               .only_with = {{"--optimizer adamw"}}},
              beta_into(options.update.beta1));
  table.value({.names = "--beta2",
               .value = "B",
               .help = "weight of the earlier squares in their average, below 1",
               .equal = true,
               .only_with = {{"--optimizer adamw"}}},
              beta_into(options.update.beta2));
  table.value({.names = "--weight-decay",
               .value = "D",
               .help = "weight decay; torch's default for AdamW is 0.01",
               .equal = true},
              number_into(options.update.weight_decay, 0, 1e6));
  table.value(
      {.names = "--clip-value", .value = "C", .help = "clip each gradient to ± C (0: off)", .equal = true},
      number_into(options.update.clip_value, 0, 1e38));
  table.value({.names = "--clip-norm",
               .value = "C",
               .help = "clip the gradient to norm C, after --clip-value (0: off)",
               .equal = true},
              number_into(options.update.clip_norm, 0, 1e38));
  table.flag(
      {.names = "--sync-bn",
       .help = "normalize by the batches of all ranks together (SyncBN)",
       .equal = true,
       .not_with = {{{"--device gpu"}, kOwnBatch}, {{"--model mlp"}, ", which has no batch normalization"}},
       .only_with = {{"--sync-every-inter 1"}, ": SyncBN needs all ranks in every step"}},
      options.sync_bn);
}

void declare_communication(OptionTable& table, TrainOptions& options) {
  table.group("Communication");
  table.value({.names = "--bucket-cap-mb",
               .value = "MB",
               .help = "MiB of gradients per bucket, which is one all-reduce",
               .equal = true},
              number_into(options.bucket_cap_mb, 0, 1e6));
  table.value({.names = "--first-bucket-mb",
               .value = "MB",
               .help = "MiB of gradients in the first bucket",
               .equal = true},
              number_into(options.first_bucket_mb, 0, 1e6));
  table.choice<bool>(
      {.names = "--zero",
       .help = "1: each rank keeps only its part of the optimizer's state (ZeRO-1)",
       .equal = true,
       .not_with = {{{"--on-peer-loss rejoin"}, ": a lost rank's part of the optimizer's state has no copy"}},
       .only_with = {{"--sync-every-inter 1"},
                     ": nodes with different weights cannot share one optimizer state"},
       .rules_for = "1"},
      options.zero, {{"0", false}, {"1", true}});
  table.value({.names = "--sync-every-inter",
               .value = "K",
               .help = "average over the nodes only every K steps; inside a node every step",
               .details = "A K above 1 needs shared memory inside the nodes.",
               .equal = true},
              number_into(options.sync_every_inter, 1, 1e9));
  declare_backend(table, "nccl on GPUs, else shared memory inside a node and TCP between nodes", options,
                  "--comm-timeout");
  table.choice<bool>(
      {.names = "--on-peer-loss",
       .help = "exit, or rejoin: the surviving ranks continue in the same process, with the weights in "
               "memory, as ordered by ddplaunch",
       .details = "With `exit` a rank that loses a peer ends with exit code 1 ([When a peer is "
                  "lost](train.md#when-a-peer-is-lost)).",
       .equal = true},
      options.rejoin, {{"exit", false}, {"rejoin", true}});
}

void declare_files(OptionTable& table, TrainOptions& options) {
  table.group("Weights and checkpoints");
  table.value({.names = "--init-from",
               .value = "FILE",
               .help = "begin with the weights of this safetensors file",
               .details = "[Weights](train.md#weights) describes it.",
               .completion = Completion::kFile,
               .equal = true,
               .not_with = {{{"--resume"}, ": both set the initial weights; give one of them"}}},
              text_into(options.init_from));
  table.value({.names = "--export",
               .value = "FILE",
               .help = "write the weights to this safetensors file at the end",
               .details = "PyTorch loads the file ([Weights](train.md#weights)).",
               .completion = Completion::kFile,
               .equal = true},
              text_into(options.export_to));
  table.value({.names = "--checkpoint-dir",
               .value = "DIR",
               .help = "directory for checkpoints",
               .details = "It must not have later checkpoints of another training "
                          "([Checkpoints](train.md#checkpoints)).",
               .completion = Completion::kDirectory,
               .equal = true},
              directory_into(options.checkpoint_dir));
  table.value({.names = "--checkpoint-every",
               .value = "N",
               .help = "steps between two checkpoints (0: one after each epoch)",
               .details = "The end of the training is always written, unless its last step was dropped. "
                          "N is a multiple of `--sync-every-inter`.",
               .equal = true,
               .only_with = {{"--checkpoint-dir"}}},
              number_into(options.checkpoint_every, 0, kMany));
  table.value({.names = "--checkpoint-keep",
               .value = "K",
               .help = "number of checkpoints to keep",
               .only_with = {{"--checkpoint-dir"}}},
              number_into(options.checkpoint_keep, 1, 1e6));
  table.value({.names = "--resume",
               .value = "DIR|auto",
               .help = "resume from this checkpoint, or from the last one in this directory; auto: the last "
                       "good one of --checkpoint-dir, if there is one",
               .completion = Completion::kDirectory,
               .equal = true,
               .only_with = {{"--checkpoint-dir"}, ", which has the checkpoints"},
               .rules_for = "auto"},
              directory_into(options.resume));
}

void declare_reports(OptionTable& table, TrainOptions& options) {
  table.group("Reports");
  table.value({.names = "--log-interval", .value = "N", .help = "steps between two progress lines"},
              number_into(options.log_interval, 1, 1e9));
  table.choice<BarMode>(
      {.names = "--bar", .help = "progress as one bar that is updated; auto: on a terminal"}, options.bar,
      {{"auto", BarMode::kAuto}, {"always", BarMode::kAlways}, {"never", BarMode::kNever}});
  table.value({.names = "--metrics-file",
               .value = "FILE",
               .help = "rank 0 appends a JSON line per step, progress line and epoch",
               .details = "[Records](train.md#records) describes the lines.",
               .completion = Completion::kFile},
              text_into(options.metrics_file));
  table.value(
      {.names = "--profile",
       .value = "FILE",
       .help = "each rank writes a Chrome trace of its steps; rank 0 prints a summary",
       .details =
           "The summary has the time of each phase, and the slowest rank without its waits for others: by "
           "p50, "
           "by p99 and by what it loses in pauses. A GPU measures its parts itself. After a restart or "
           "replacement of rank 0 it says at which step it begins.",
       .completion = Completion::kFile,
       .equal = true},
      text_into(options.profile));
  table.value(
      {.names = "--sample-log",
       .value = "DIR",
       .help = "each rank lists the numbers of its samples in DIR/rank-N",
       .details = "A line is `epoch step: numbers`. Attempts after the first write DIR/rank-N.attempt-A.",
       .completion = Completion::kDirectory},
      text_into(options.sample_log));
  table.value(
      {.names = "--flight-recorder",
       .value = "DIR",
       .help = "each rank writes its last collective operations to DIR/rank-N.jsonl when one of them fails",
       .details = "`--read-flight-recorder` analyzes the files.",
       .completion = Completion::kDirectory},
      text_into(options.flight_recorder));
  table.value(
      {.names = "--inject-nan",
       .value = "RANK:STEP",
       .help = "fault injection: put a nan into this rank's gradient of this step"},
      OptionField{parsed_into(options.inject_nan, parse_injected_nan, ": give RANK:STEP; steps begin with 1"),
                  [&options] {
                    if (!options.inject_nan) return std::string();
                    return std::to_string(options.inject_nan->rank) + ':' +
                           std::to_string(options.inject_nan->step);
                  }});
}

/// Returns the error text for an option that has become a subcommand; empty: `word` is another option.
std::string moved(const std::string& word) {
  const std::string option = word.substr(0, word.find('='));
  const char* operands = option == "--bench"    ? "bench OPERATION"
                         : option == "--health" ? "health [TIME]"
                                                : nullptr;
  if (operands == nullptr) return "";
  return option + " is a subcommand and comes first: train " + operands + " [OPTION…]";
}

}  // namespace

const std::vector<std::pair<std::string, DeviceKind>>& device_words() {
  static const std::vector<std::pair<std::string, DeviceKind>> words{
      {"auto", DeviceKind::kAuto}, {"cpu", DeviceKind::kCpu}, {"gpu", DeviceKind::kGpu}};
  return words;
}

const std::vector<std::pair<std::string, CommKind>>& comm_words() {
  static const std::vector<std::pair<std::string, CommKind>> words{
      {"auto", CommKind::kAuto}, {"tcp", CommKind::kTcp}, {"shm", CommKind::kShm}, {"nccl", CommKind::kNccl}};
  return words;
}

void declare_backend(OptionTable& table, const std::string& auto_help, BackendOptions& options,
                     std::string timeout_names) {
  table.choice<CommKind>(
      {.names = "--comm",
       .help = "auto: " + auto_help +
               "; tcp: only that; shm: as auto on CPUs, but never without shared memory; "
               "nccl: NVIDIA's library, over the GPUs",
       .details = "[GPUs and NCCL](train.md#gpus-and-nccl) says where NCCL is searched for."},
      options.comm, comm_words());
  table.flag({.names = "--share-gpu",
              .help = "several ranks use one GPU, for tests",
              .only_with = {.others = {"--comm nccl"}}},
             options.share_gpu);
  table.value({.names = std::move(timeout_names),
               .value = "TIME",
               .help = "give up when a peer moves no byte for this long",
               .details = "NCCL's start waits 120 s for other ranks, or TIME if that is longer."},
              time_into(options.comm_timeout, std::chrono::milliseconds(1)));
}

void declare_json(OptionTable& table, std::string& file) {
  table.value({.names = "--json",
               .value = "FILE",
               .help = "file for the result, written by rank 0",
               .details = "[Records](acceptance.md#records) describes it.",
               .completion = Completion::kFile,
               .equal = true},
              text_into(file));
}

void declare_options(OptionTable& table, TrainOptions& options) {
  declare_evaluator(table, options);
  declare_task(table, options);
  declare_hyperparameters(table, options);
  declare_communication(table, options);
  declare_files(table, options);
  declare_reports(table, options);
  declare_help(table);
}

std::vector<OptionGroup> train_option_groups() {
  return option_groups<TrainOptions>(declare_options);
}

namespace {

std::string complete(const OptionTable& table, TrainOptions& options) {
  options.keeps_steps = !table.given("--epochs") && !table.given("--limit") && !table.given("--max-steps");
  options.chooses_lr = !table.given("--lr");
  return "";
}

}  // namespace

ParsedCommand<TrainOptions> parse_options(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string advice = moved(argv[i]);
    if (!advice.empty()) return {std::nullopt, refuse("train", {advice})};
  }
  return parse_command<TrainOptions>("train", kUsage, declare_options, complete, argc, argv);
}

std::string gpu_option(const TrainOptions& options) {
  if (options.dtype == Dtype::kBfloat16) return "--dtype bfloat16";
  return options.matmul_precision == MatmulPrecision::kHigh ? "--matmul-precision high" : "";
}

std::string device_obstacle(const TrainOptions& options) {
  if (options.sync_bn) return std::string("--sync-bn cannot be used with --device gpu") + kOwnBatch;
  if (options.model == ModelKind::kMlp &&
      size_of(mlp_layout(options.mlp_width, options.mlp_depth).parameters) > kMostGpuParameters) {
    return "--device gpu supports at most 2000000000 parameters; make --mlp-width or --mlp-depth "
           "smaller";
  }
  return "";
}

std::string contradiction(const TrainOptions& options, int world_size) {
  if (options.checkpoint_every % static_cast<std::uint64_t>(options.sync_every_inter) != 0) {
    return "--checkpoint-every must be a multiple of --sync-every-inter: between two averages the nodes "
           "differ";
  }
  if (options.inject_nan && options.inject_nan->rank >= world_size) {
    return "--inject-nan names rank " + std::to_string(options.inject_nan->rank) + " of " +
           std::to_string(world_size);
  }
  const std::string gpu_only = gpu_option(options);
  if (!gpu_only.empty() && options.device == DeviceKind::kCpu) return gpu_only + " requires --device gpu";
  if (!gpu_only.empty() && options.device == DeviceKind::kAuto) {
    const bool host_transport = options.comm == CommKind::kTcp || options.comm == CommKind::kShm;
    if (host_transport && world_size > 1)
      return gpu_only + " requires a GPU; remove --comm, or give --device gpu";
    if (std::string obstacle = device_obstacle(options); !obstacle.empty()) return obstacle;
  }
  if (options.device == DeviceKind::kGpu) {
    if (std::string obstacle = device_obstacle(options); !obstacle.empty()) return obstacle;
    if (const auto can = can_use_gpu(); !can) return "--device gpu: " + can.error().text;
  }
  if (kernels::find_kernels<float>(options.kernels) == nullptr) {
    std::string names;
    for (const auto* one : kernels::all_kernels<float>())
      names += std::string(names.empty() ? "" : ", ") + one->name;
    return "--kernels " + options.kernels + ": this processor runs " + names + " and no other";
  }
  return "";
}

void declare_help(OptionTable& table) {
  table.group("Help");
  table.flag({.names = "-h,--help", .help = "print this text"});
  table.flag({.names = "-V,--version", .help = "print the version"});
}

int refuse(const std::string& command, const std::vector<std::string>& errors) {
  for (const std::string& error : errors)
    std::fprintf(stderr, "%s: %s\n", command.c_str(), one_line(error).c_str());
  return 2;
}

std::optional<int> read_command_line(const std::string& command, OptionTable& table, int argc,
                                     const char* const* argv, const std::function<std::string()>& complete) {
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> errors = parse_arguments(command, args, table);
  if (table.given("--help") || table.given("--version")) {
    const std::string text = table.given("--help") ? table.help() : "train " + std::string(version()) + '\n';
    std::signal(SIGPIPE, SIG_DFL);  // `train --help | head` ends here, as other programs do
    std::fputs(text.c_str(), stdout);
    return std::fflush(stdout), 0;
  }
  if (errors.empty()) errors.push_back(complete());
  if (errors.front().empty()) return std::nullopt;
  return refuse(command, errors);
}

namespace {

/// Nodes may have a file or directory in different places.
std::string equal_text(const Option& option, const std::string& text) {
  const bool is_path = option.completion == Completion::kFile || option.completion == Completion::kDirectory;
  if (text.empty()) return "not given";
  return is_path && text != "auto" ? "a path" : text;
}

}  // namespace

const char* comm_text(CommKind comm) {
  for (const auto& [word, kind] : comm_words())
    if (kind == comm) return word.c_str();
  return "?";
}

const char* device_text(DeviceKind device) {
  for (const auto& [word, kind] : device_words())
    if (kind == device) return word.c_str();
  return "?";
}

EqualOptions equal_options(const OptionTable& table) {
  EqualOptions list;
  for (const OptionGroup& group : table.groups()) {
    for (const Option& option : group.options)
      if (option.equal)
        list.push_back({split_names(option.names).front(), equal_text(option, table.text(option))});
  }
  return list;
}

EqualOptions equal_options(TrainOptions options, const DataSplit& data) {
  OptionTable table("");
  declare_options(table, options);
  EqualOptions list = equal_options(table);
  list.push_back({"the number of training images", std::to_string(data.training.size())});
  list.push_back({"the number of test images", std::to_string(data.test.size())});
  return list;
}

namespace {

/// Options that change no result by more than the rounding of sums. `--data` is judged by its checksums.
constexpr std::string_view kHarmless[] = {"--read-flight-recorder",
                                          "--data",
                                          "--device",
                                          "--threads",
                                          "--kernels",
                                          "--bucket-cap-mb",
                                          "--first-bucket-mb",
                                          "--zero",
                                          "--comm",
                                          "--share-gpu",
                                          "--comm-timeout",
                                          "--export",
                                          "--checkpoint-dir",
                                          "--checkpoint-every",
                                          "--checkpoint-keep",
                                          "--log-interval",
                                          "--bar",
                                          "--metrics-file",
                                          "--profile",
                                          "--sample-log",
                                          "--flight-recorder",
                                          "-h",
                                          "-V"};

/// A training on Fashion-MNIST, of open length, whose result was measured.
struct KnownTraining {
  TrainOptions options;
  double least_percent;
  int most_ranks;
};
KnownTraining known_training(ModelKind model) {
  // Seen were 86 to 88 % with 100 to 6400 images in a step, and 86 % after 69 of the 150 steps with all
  // 60,000, which is the most that a step can have.
  KnownTraining small{{}, 80, std::numeric_limits<int>::max()};
  small.options.model = ModelKind::kConvNet;
  if (model != ModelKind::kMlp) return small;
  // 58 MiB of gradients, in buckets of 25 MiB. Seen were 82.7 to 85.4 %, with 100 to 6400 images in a step.
  KnownTraining large{{}, 75, 64};
  large.options.model = ModelKind::kMlp;
  large.options.mlp_width = 2560;
  large.options.mlp_depth = 3;
  large.options.lr.peak = 0.1;
  return large;
}

}  // namespace

std::string take_device(DeviceKind device, TrainOptions& options) {
  options.device = device;
  if (options.model != ModelKind::kAuto) return "";
  options.model = ModelKind::kConvNet;
  if (device != DeviceKind::kGpu) return "";
  const TrainOptions known = known_training(ModelKind::kMlp).options;
  options.model = known.model;
  options.mlp_width = known.mlp_width;
  options.mlp_depth = known.mlp_depth;
  if (options.chooses_lr && options.update.kind == OptimizerKind::kSgd) options.lr.peak = known.lr.peak;
  return format_text("model mlp (--mlp-width %d --mlp-depth %d --lr %g), the default on GPUs",
                     options.mlp_width, options.mlp_depth, options.lr.peak);
}

std::vector<std::string> unusual_options(TrainOptions options) {
  (void)take_device(options.device, options);
  TrainOptions defaults = known_training(options.model).options;
  std::vector<std::string> unusual;
  // The length that the ranks have agreed on is the usual one.
  if (options.keeps_steps)
    options.epochs = defaults.epochs;
  else if (options.epochs == defaults.epochs && options.limit == 0 && options.max_steps == 0)
    unusual.push_back("--epochs " + std::to_string(options.epochs));
  OptionTable mine(""), usual("");
  declare_options(mine, options);
  declare_options(usual, defaults);
  for (const OptionGroup& group : mine.groups()) {
    for (const Option& option : group.options) {
      const std::string name = split_names(option.names).front();
      if (std::ranges::find(kHarmless, name) != std::end(kHarmless)) continue;
      const std::string text = mine.text(option);
      if (text == usual.text(option)) continue;
      unusual.push_back(option.takes_value() ? name + ' ' + text : name);
    }
  }
  return unusual;
}

TrainingVerdict judge_training(const TrainOptions& options, const std::array<std::uint32_t, 4>& checksums,
                               int world, double percent) {
  constexpr std::array<std::uint32_t, 4> kFashion{0xae65dccd, 0x2ed6e46a, 0x12728439, 0x242bc73f};
  TrainingVerdict verdict{format_text("%.1f %% of the test images are right", percent), {}};
  const KnownTraining known = known_training(options.model);
  if (const std::vector<std::string> unusual = unusual_options(options); !unusual.empty()) {
    verdict.text += "; no known result with " + join(unusual, ", ");
  } else if (checksums != kFashion) {
    verdict.text += "; no known result of images that are not Fashion-MNIST's";
  } else if (world > known.most_ranks) {
    verdict.text += "; no known result for more than " + counted(known.most_ranks, "rank") +
                    "; --model convnet has one for any number";
  } else {
    verdict.text += format_text(", at least %.0f %% are expected", known.least_percent);
    if (percent < known.least_percent)
      verdict.known =
          Error{ErrorCode::kInternal,
                format_text("%.1f %% of the test images are right, and this training reaches %.0f %% on "
                            "sound hardware: a device or the network of a rank is faulty",
                            percent, known.least_percent)};
  }
  return verdict;
}

std::string take_field(std::string_view& text, char end) {
  const std::size_t size = std::min(text.find(end), text.size());
  std::string field(text.substr(0, size));
  text.remove_prefix(std::min(size + 1, text.size()));
  return field;
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
    const std::string name = take_field(text_of_other);
    const std::string value = take_field(text_of_other);
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
  DDP_TRY(world.broadcast(std::as_writable_bytes(std::span(&size, 1)), other));
  text.resize(size);
  DDP_TRY(world.broadcast(std::as_writable_bytes(std::span(text)), other));
  const std::string differs = difference(mine, world.rank(), text, other);
  const auto own = differs.empty() ? Result<>() : Error{ErrorCode::kUsage, differs};
  return from ? own : share_outcome(world, own);
}

}  // namespace ddp::train
