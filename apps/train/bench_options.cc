#include "apps/train/bench_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <map>
#include <string_view>

#include "apps/train/finite_check.h"

namespace ddp::train {

namespace {

constexpr int kUsageExit = 2;

const std::map<std::string, BenchOperation> kOperations{{"allreduce", BenchOperation::kAllReduce},
                                                        {"allgather", BenchOperation::kAllGather},
                                                        {"reducescatter", BenchOperation::kReduceScatter},
                                                        {"broadcast", BenchOperation::kBroadcast},
                                                        {"sendrecv", BenchOperation::kSendReceive}};
const std::map<std::string, CommKind> kWays{
    {"auto", CommKind::kAuto}, {"tcp", CommKind::kTcp}, {"shm", CommKind::kShm}, {"gloo", CommKind::kGloo}};

void add_bytes(CLI::App& app, const char* name, std::size_t& value, const char* text) {
  app.add_option_function<std::string>(
         name,
         [name, &value](const std::string& word) {
           const auto bytes = parse_bytes(word);
           if (!bytes || *bytes == 0 || *bytes > std::size_t{1} << 40) {
             throw CLI::ValidationError(name, "\"" + word + "\" is no size; write 8, 64K, 32M or 1G");
           }
           value = *bytes;
         },
         text)
      ->type_name("BYTES");
}

void add_options(CLI::App& app, BenchOptions& options, double& timeout) {
  app.add_option_function<std::string>(
         "--bench",
         [&options](const std::string& word) {
           const auto found = kOperations.find(word);
           if (found == kOperations.end()) {
             throw CLI::ValidationError("--bench",
                                        "there is no operation \"" + word +
                                            "\"; write allreduce, allgather, reducescatter, broadcast "
                                            "or sendrecv");
           }
           options.operation = found->second;
         },
         "allreduce, allgather, reducescatter, broadcast or sendrecv")
      ->type_name("OPERATION");
  add_bytes(app, "-b,--minbytes", options.min_bytes, "smallest message (default 8)");
  add_bytes(app, "-e,--maxbytes", options.max_bytes, "largest message (default 32M)");
  app.add_option("-f,--stepfactor", options.step_factor, "from one size to the next")
      ->check(finite_check)
      ->check(CLI::Range(1.01, 1e12).description(""))
      ->capture_default_str();
  app.add_option("-n,--iters", options.iterations, "measured operations of each size")
      ->check(CLI::Range(1, 10'000'000).description(""))
      ->capture_default_str();
  app.add_option("-w,--warmup-iters", options.warmup, "operations before them")
      ->check(CLI::Range(0, 10'000'000).description(""))
      ->capture_default_str();
  app.add_option("-c,--check", options.check, "1: check every element of a result; 0: don't")
      ->capture_default_str();
  app.add_flag(
      "--pairs", options.pairs,
      "every rank with every other, in rounds of disjoint pairs: bandwidth at -e (default 4M) and latency");
  app.add_option("--min-busbw", options.min_busbw,
                 "exit code 1 when the largest message, or with --pairs a pair, stays under so many GB/s")
      ->check(finite_check)
      ->check(CLI::Range(0.0, 1e9).description(""))
      ->type_name("GB/S");
  app.add_option("--json", options.json, "rank 0 writes the result there")->type_name("FILE");
  app.add_option_function<std::string>(
         "--comm",
         [&options](const std::string& word) {
           const auto found = kWays.find(word);
           if (found == kWays.end())
             throw CLI::ValidationError(
                 "--comm", "there is no way between ranks \"" + word + "\"; write auto, tcp, shm or gloo");
           options.comm = found->second;
         },
         "auto: shared memory inside a node, TCP between nodes; tcp; shm; gloo, where it was built in "
         "(default auto)")
      ->type_name("WAY");
  app.add_option("--comm-timeout", timeout, "seconds after which a peer that does nothing is lost")
      ->check(finite_check)
      ->check(CLI::Range(0.001, 86'400.0).description(""))
      ->capture_default_str();
}

}  // namespace

std::optional<std::size_t> parse_bytes(std::string_view text) {
  static const std::map<std::string_view, int> kUnits{{"", 0},    {"K", 10},  {"KB", 10},  {"KiB", 10},
                                                      {"M", 20},  {"MB", 20}, {"MiB", 20}, {"G", 30},
                                                      {"GB", 30}, {"GiB", 30}};
  std::size_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || value > std::size_t{1} << 40) return std::nullopt;
  const auto unit = kUnits.find(text.substr(static_cast<std::size_t>(end - text.data())));
  if (unit == kUnits.end()) return std::nullopt;
  return value << unit->second;
}

bool wants_bench(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--bench" || word.starts_with("--bench=")) return true;
  }
  return false;
}

ParsedBenchOptions parse_bench_options(int argc, const char* const* argv) {
  BenchOptions options;
  double timeout = 60;
  CLI::App app("Measures the ways between the ranks, with the options and the table of nccl-tests.",
               "train --bench");
  add_options(app, options, timeout);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return {std::nullopt, app.exit(error) == 0 ? 0 : kUsageExit};
  }
  if (options.pairs && app.count("-e") == 0) options.max_bytes = 4u << 20;
  if (options.min_bytes > options.max_bytes) options.min_bytes = options.max_bytes;
  if (options.pairs && options.operation != BenchOperation::kSendReceive) {
    std::fprintf(stderr, "--pairs: write --bench sendrecv --pairs\n");
    return {std::nullopt, kUsageExit};
  }
  options.comm_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1000));
  return {options, 0};
}

}  // namespace ddp::train
