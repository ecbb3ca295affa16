#include "apps/train/options/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <string_view>
#include <type_traits>
#include <vector>

#include "apps/train/options/option_text.h"
#include "base/build_identity.h"

namespace ddp::train {

namespace {

constexpr int kUsageExit = 2;

/// Parses "RANK:STEP".
std::optional<InjectedNan> parse_injected_nan(std::string_view text) {
  InjectedNan inject;
  const char* end = text.data() + text.size();
  const auto rank = std::from_chars(text.data(), end, inject.rank);
  if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != ':' || inject.rank < 0) return std::nullopt;
  const auto step = std::from_chars(rank.ptr + 1, end, inject.step);
  if (step.ec != std::errc() || step.ptr != end || inject.step == 0) return std::nullopt;
  return inject;
}

/// Adds the options of one group of --help.
class OptionGroup {
 public:
  OptionGroup(CLI::App& app, const char* name) : app_(app), name_(name) {}

  template <class T>
  CLI::Option* number(const char* option, T& value, const char* text, double low, double high,
                      const char* type = "N") {
    return app_.add_option(option, value, text)
        ->check([=](const std::string& text) { return range_error(text, low, high, std::is_integral_v<T>); })
        ->type_name(type)
        ->capture_default_str()
        ->group(name_);
  }
  CLI::Option* text(const char* option, std::string& value, const char* text, const char* type) {
    return app_.add_option(option, value, text)->type_name(type)->group(name_);
  }
  /// A directory's path, without slashes at its end.
  void directory(const char* option, std::string& value, const char* text) {
    this->text(option, value, text, "DIR")->transform([](std::string path) {
      while (path.size() > 1 && path.ends_with('/'))
        path.pop_back();
      return path;
    });
  }
  void flag(const char* option, bool& value, const char* text) {
    app_.add_flag(option, value, text)->group(name_);
  }
  /// Adds an option whose value is one of `words`. Errors read: unknown --OPTION "x" (WORDS).
  template <class T>
  void choice(const char* option, T& value, std::vector<std::pair<std::string, T>> words, const char* text,
              const char* type) {
    std::string list;
    for (std::size_t i = 0; i < words.size(); ++i)
      list += (i == 0 ? "" : ", ") + words[i].first;
    app_.add_option_function<std::string>(
            option,
            [option, &value, words, list](const std::string& word) {
              for (const auto& [name, meant] : words) {
                if (word == name) {
                  value = meant;
                  return;
                }
              }
              throw CLI::ValidationError("unknown " + std::string(option) + " \"" + word + "\" (" + list +
                                         ")");
            },
            text)
        ->type_name(type)
        ->group(name_);
  }

 private:
  CLI::App& app_;
  const char* name_;
};

constexpr double kMany = 1e15;

void add_evaluator(CLI::App& app, TrainOptions& options) {
  app.add_option("--read-flight-recorder", options.read_flight_recorder,
                 "analyze the files of --flight-recorder DIR: print which rank the others waited for")
      ->type_name("DIR")
      ->group("Instead of training");
}

void add_task(CLI::App& app, TrainOptions& options) {
  OptionGroup group(app, "Model and data");
  group
      .text("--data", options.data, "directory with the MNIST or Fashion-MNIST files, or \"synthetic\"",
            "DIR")
      ->capture_default_str();
  group.number("--limit", options.limit,
               "use only the first N training images (0: all); with --data synthetic, N may exceed 60000", 0,
               1e12);
  group.choice<ModelKind>("--model", options.model,
                          {{"convnet", ModelKind::kConvNet}, {"mlp", ModelKind::kMlp}},
                          "convnet, or mlp (default convnet)", "NAME");
  group.number("--mlp-width", options.mlp_width, "width of the MLP's hidden layers", 1, 65'536);
  group.number("--mlp-depth", options.mlp_depth,
               "number of the MLP's hidden layers (2048 x 7 has 107 MB of gradients)", 1, 1'000);
  group.choice<Dtype>(
      "--dtype", options.dtype,
      {{"float32", Dtype::kFloat32}, {"float64", Dtype::kFloat64}, {"bfloat16", Dtype::kBfloat16}},
      "float32, float64 as the reference, or on a GPU bfloat16 with float32 master weights (default "
      "float32)",
      "TYPE");
  group.choice<DeviceKind>("--device", options.device, {{"cpu", DeviceKind::kCpu}, {"gpu", DeviceKind::kGpu}},
                           "cpu, or gpu: the GPU of LOCAL_RANK (default cpu)", "NAME");
  group.number("--epochs", options.epochs, "passes over the training images", 1, 1e6);
  group.number("--max-steps", options.max_steps, "end after step N (0: after the last epoch)", 0, kMany);
  group.number("--batch-size", options.batch_size, "images per batch and rank", 1, 16'384);
  group.number("--accumulate", options.accumulate,
               "batches per step; gradients are all-reduced in the last one only", 1, 1e6);
  group.number("--seed", options.seed, "seed of weights and shuffling", -9e18, 9e18, "S");
  group.number("--threads", options.threads, "threads per rank; results do not depend on their number", 1,
               1'024);
  group.text("--kernels", options.kernels,
             "instruction set: generic, x86_64_v2, x86_64_v3 or x86_64_v4 (default: the best)", "NAME");
}

void add_hyperparameters(CLI::App& app, TrainOptions& options) {
  OptionGroup group(app, "Recipe");
  group.choice<OptimizerKind>("--optimizer", options.optimizer.kind,
                              {{"sgd", OptimizerKind::kSgd}, {"adamw", OptimizerKind::kAdamw}},
                              "sgd, or adamw (default sgd)", "NAME");
  group.number("--lr", options.lr.peak, "learning rate", 0, 1e38, "RATE");
  group.choice<LrShape>("--lr-schedule", options.lr.shape,
                        {{"constant", LrShape::kConstant}, {"cosine", LrShape::kCosine}},
                        "constant, or cosine to zero (default constant)", "NAME");
  group.number("--warmup-steps", options.lr.warmup_steps, "warm-up steps, in which the learning rate rises",
               0, kMany);
  group.number("--momentum", options.optimizer.momentum, "SGD momentum", 0, 1, "M");
  group.number("--beta1", options.optimizer.beta1, "AdamW's average of gradients", 0, 1, "B");
  group.number("--beta2", options.optimizer.beta2, "AdamW's average of squares", 0, 1, "B");
  group.number("--weight-decay", options.optimizer.weight_decay, "0.01 is torch's default for AdamW", 0, 1e6,
               "D");
  group.number("--clip-value", options.clip_value, "clip each gradient to ± C (0: off)", 0, 1e38, "C");
  group.number("--clip-norm", options.clip_norm, "clip the gradient to norm C, after --clip-value (0: off)",
               0, 1e38, "C");
  group.flag("--sync-bn", options.sync_bn, "normalize by the batches of all ranks together (SyncBN)");
}

void add_ranks(CLI::App& app, TrainOptions& options) {
  OptionGroup group(app, "Communication");
  group.number("--bucket-cap-mb", options.bucket_cap_mb, "MiB of gradients per bucket", 0, 1e6, "MB");
  group.number("--first-bucket-mb", options.first_bucket_mb, "MiB of gradients in the first bucket", 0, 1e6,
               "MB");
  app.add_option_function<int>(
         "--zero", [&options](int stage) { options.zero = stage == 1; },
         "1: each rank keeps only its part of the optimizer's state (ZeRO-1)")
      ->check([](const std::string& text) { return range_error(text, 0, 1, true); })
      ->type_name("STAGE")
      ->group("Communication");
  group.number("--sync-every-inter", options.sync_every_inter,
               "average over the nodes only every K steps; inside a node every step", 1, 1e9, "K");
  group.choice<CommKind>(
      "--comm", options.comm,
      {{"auto", CommKind::kAuto},
       {"tcp", CommKind::kTcp},
       {"shm", CommKind::kShm},
       {"nccl", CommKind::kNccl}},
      "auto: shared memory inside a node, TCP between nodes; tcp: only that; shm: as auto, "
      "but never without shared memory; nccl: over the GPUs (default auto)",
      "BACKEND");
  group.flag("--share-gpu", options.share_gpu, "with --comm nccl: several ranks use one GPU, for tests");
  app.add_option_function<std::string>(
         "--comm-timeout",
         [&options](const std::string& text) {
           const auto duration = parse_duration(text);
           if (!duration) throw CLI::ValidationError("--comm-timeout", no_duration(text));
           options.comm_timeout = *duration;
         },
         "give up when a peer moves no byte for this long (default 60s)")
      ->type_name("TIME")
      ->group("Communication");
  group.choice<bool>("--on-peer-loss", options.rejoin, {{"exit", false}, {"rejoin", true}},
                     "exit, or rejoin: the surviving ranks continue in the same process, with the weights "
                     "in memory, as ordered by ddplaunch (default exit)",
                     "ACTION");
}

void add_files(CLI::App& app, TrainOptions& options) {
  OptionGroup group(app, "Weights and checkpoints");
  group.text("--init-from", options.init_from, "begin with the weights of this safetensors file", "FILE");
  group.text("--export", options.export_to, "write the weights to this safetensors file at the end", "FILE");
  group.directory("--checkpoint-dir", options.checkpoint_dir, "directory for checkpoints");
  group.number("--checkpoint-every", options.checkpoint_every,
               "steps between two checkpoints (0: one after each epoch)", 0, kMany);
  group.number("--checkpoint-keep", options.checkpoint_keep, "number of checkpoints to keep", 1, 1e6);
  group.directory(
      "--resume", options.resume,
      "resume from this checkpoint, or from the last one in this directory; auto: the last good one "
      "of --checkpoint-dir, if there is one");
}

void add_reports(CLI::App& app, TrainOptions& options) {
  OptionGroup group(app, "Reports");
  group.number("--log-interval", options.log_interval, "steps between two progress lines", 1, 1e9);
  group.choice<BarMode>("--bar", options.bar,
                        {{"auto", BarMode::kAuto}, {"always", BarMode::kAlways}, {"never", BarMode::kNever}},
                        "auto (on a terminal), always or never (default auto)", "WHEN");
  group.text("--metrics-file", options.metrics_file,
             "rank 0 writes a JSON line per step, progress line and epoch", "FILE");
  group.text("--profile", options.profile,
             "each rank writes a Chrome trace of its steps; rank 0 prints a summary", "FILE");
  group.text("--sample-log", options.sample_log, "each rank lists the numbers of its samples in DIR/rank-N",
             "DIR");
  group.text("--flight-recorder", options.flight_recorder,
             "each rank writes its last collective operations to DIR/rank-N.jsonl when one of them fails",
             "DIR");
  app.add_option_function<std::string>(
         "--inject-nan",
         [&options](const std::string& text) {
           options.inject_nan = parse_injected_nan(text);
           if (!options.inject_nan)
             throw CLI::ValidationError("--inject-nan",
                                        "\"" + text + "\" is not RANK:STEP; steps begin with 1");
         },
         "fault injection: put a nan into this rank's gradient of this step")
      ->type_name("RANK:STEP")
      ->group("Reports");
}

/// Returns the error text for an option that has become a subcommand; empty: `word` is another option.
std::string moved(const std::string& word) {
  const std::string option = word.substr(0, word.find('='));
  if (option == "--bench") return "is a subcommand and comes first: train bench OPERATION [OPTION…]";
  if (option == "--health") return "is a subcommand and comes first: train health [TIME] [OPTION…]";
  return "";
}

}  // namespace

ParsedTrainOptions parse_options(int argc, const char* const* argv) {
  TrainOptions options;
  CLI::App app(
      "Trains a small model on (Fashion-)MNIST, data-parallel over the ranks that the environment names.\n"
      "Instead of training: train bench --help (measures the network between the ranks, as nccl-tests "
      "does),\n"
      "train health --help (tests each rank's device and the network between the ranks).",
      "train");
  add_evaluator(app, options);
  app.set_version_flag("--version", std::string("train ") + std::string(version()));
  add_task(app, options);
  add_hyperparameters(app, options);
  add_ranks(app, options);
  add_files(app, options);
  add_reports(app, options);
  try {
    auto words = reversed_arguments(argc, argv);
    for (const std::string& word : words)
      if (const std::string where = moved(word); !where.empty()) throw CLI::ValidationError(word, where);
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return {std::nullopt, app.exit(error) == 0 ? 0 : kUsageExit};
  }
  return {options, 0};
}

}  // namespace ddp::train
