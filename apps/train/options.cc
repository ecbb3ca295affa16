#include "apps/train/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <vector>

#include "base/version.h"

namespace ddp::train {

namespace {

constexpr int kUsageExit = 2;

/// "60", "60s", "500ms", "2m"; no unit: seconds.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text) {
  static const std::map<std::string_view, double> kUnits{
      {"", 1e3}, {"s", 1e3}, {"ms", 1}, {"m", 6e4}, {"h", 3.6e6}};
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc()) return std::nullopt;
  const auto unit = kUnits.find(text.substr(static_cast<std::size_t>(end - text.data())));
  if (unit == kUnits.end()) return std::nullopt;
  const double ms = value * unit->second;
  if (!(ms >= 1 && ms <= 8.64e7)) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(ms));
}

/// --batch_size is --batch-size, as in torchrun.
std::vector<std::string> arguments_in_reverse(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  for (std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    std::replace(argument.begin(), argument.begin() + std::min(argument.find('='), argument.size()), '_',
                 '-');
  }
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  return arguments;
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("--data", options.data, "directory with the MNIST or Fashion-MNIST files, or \"synthetic\"")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the training images")
      ->check(CLI::Range(1, 1'000'000).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "images per step and rank")
      ->check(CLI::Range(1, 16'384).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate")
      ->check(CLI::Range(0.0, 1e38).description(""))
      ->type_name("RATE")
      ->capture_default_str();
  app.add_option("--momentum", options.momentum, "SGD momentum")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->type_name("M")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "seed of weights and shuffling")
      ->type_name("S")
      ->capture_default_str();
  app.add_option("--limit", options.limit, "use only the first N training images (0: all)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--log-interval", options.log_interval, "steps between two progress lines")
      ->check(CLI::Range(1, 1'000'000'000).description(""))
      ->type_name("N")
      ->capture_default_str();
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(
      "Trains a small ConvNet on (Fashion-)MNIST, data-parallel over the ranks that the environment names.",
      "train");
  app.set_version_flag("--version", std::string("train ") + std::string(version()));
  add_options(app, options);
  app.add_option("--model", "convnet")
      ->check(CLI::Validator(
          [](std::string& value) {
            return value == "convnet" ? ""
                                      : "there is no model \"" + value + "\" yet; the one model is convnet";
          },
          "", "model"))
      ->type_name("NAME");
  app.add_option_function<std::string>(
         "--dtype",
         [&options](const std::string& text) {
           if (text != "float32" && text != "float64") {
             throw CLI::ValidationError("--dtype",
                                        "there is no type \"" + text + "\"; write float32 or float64");
           }
           options.dtype = text == "float64" ? Dtype::kFloat64 : Dtype::kFloat32;
         },
         "float32, or float64 as the reference (default float32)")
      ->type_name("TYPE");
  app.add_option_function<std::string>(
         "--comm-timeout",
         [&options](const std::string& text) {
           const auto duration = parse_duration(text);
           if (!duration) {
             throw CLI::ValidationError(
                 "--comm-timeout", "\"" + text + "\" is no duration; write 500ms, 60s or 2m (at most 24h)");
           }
           options.comm_timeout = *duration;
         },
         "give up when a peer moves no byte for this long (default 60s)")
      ->type_name("TIME");
  app.add_option("--threads", "threads per rank; only 1 so far")
      ->check(CLI::Validator(
          [](std::string& value) {
            return value == "1" ? "" : "only 1 thread per rank so far; start more ranks";
          },
          "", "threads"))
      ->type_name("N");

  try {
    auto arguments = arguments_in_reverse(argc, argv);
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return {std::nullopt, app.exit(error) == 0 ? 0 : kUsageExit};
  }
  return {options, 0};
}

}  // namespace ddp::train
