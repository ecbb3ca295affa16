#include "apps/train/bench/bench_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string_view>

#include "apps/train/options/option_text.h"

namespace ddp::train {

namespace {

constexpr int kUsageExit = 2;
constexpr std::size_t kDefaultMost = 32u << 20;
constexpr std::size_t kDefaultOfPairs = 4u << 20;
constexpr std::size_t kDefaultStep = 1u << 20;  // as in nccl-tests for -f 1
constexpr double kLeastFactor = 1.01;
constexpr double kMostSizes = 10'000;

const std::map<std::string, BenchOperation> kOperations{{"allreduce", BenchOperation::kAllReduce},
                                                        {"allgather", BenchOperation::kAllGather},
                                                        {"reducescatter", BenchOperation::kReduceScatter},
                                                        {"broadcast", BenchOperation::kBroadcast},
                                                        {"pairs", BenchOperation::kPairs}};
const std::map<std::string, CommKind> kBackends{
    {"auto", CommKind::kAuto}, {"tcp", CommKind::kTcp}, {"shm", CommKind::kShm}, {"nccl", CommKind::kNccl}};

/// Options of nccl-tests with only one possible value here. A value that changes nothing is accepted; others
/// are refused.
struct FixedOption {
  const char* names;
  const char* taken;  ///< accepted words between spaces; empty: any
  const char* instead;
};
constexpr FixedOption kFixed[] = {
    {"-t,--nthreads", "1", "a rank is one thread; start more ranks with --nproc-per-node"},
    {"-g,--ngpus", "0 1", "a rank uses one GPU at most; start more ranks with --nproc-per-node"},
    {"-o,--op", "sum", "only sum is measured"},
    {"-d,--datatype", "float", "only float is measured"},
    {"-r,--root", "0", "rank 0 is the root"},
    {"-m,--agg-iters", "1", "operations are not aggregated"},
    {"-N,--run-cycles", "1", "run the program again for another cycle"},
    {"-a,--average", "1", "the time is the mean over the ranks"},
    {"-G,--cudagraph", "0", "operations are put into a stream, not into a graph"},
    {"-p,--parallel-init", "", ""},
    {"-z,--blocking", "", ""},
    {"-y,--stream-null", "", ""},
    {"-C,--report-cputime", "0", "only wall-clock time is reported"},
    {"-R,--local-register", "", ""},
};

bool is_one_of(std::string_view word, const std::string& words) {
  return words.empty() || (" " + words + " ").find(" " + std::string(word) + " ") != std::string::npos;
}

void add_fixed(CLI::App& app) {
  for (const FixedOption& fixed : kFixed) {
    app.add_option_function<std::string>(
           fixed.names,
           [&fixed](const std::string& word) {
             if (!is_one_of(word, fixed.taken))
               throw CLI::ValidationError(fixed.names, "\"" + word + "\": " + fixed.instead);
           },
           *fixed.instead ? fixed.instead : "accepted, without effect")
        ->type_name(*fixed.taken ? fixed.taken : "N")
        ->group("Options of nccl-tests with one possible value");
  }
}

void add_bytes(CLI::App& app, const char* names, std::size_t& value, const char* text) {
  app.add_option_function<std::string>(
         names,
         [names, &value](const std::string& word) {
           const auto bytes = parse_bytes(word);
           if (!bytes) {
             throw CLI::ValidationError(
                 names, "\"" + word +
                            "\" is not a valid size (1 byte to 1024G); write for example 8, 64K, 1.5M or 1G");
           }
           value = *bytes;
         },
         text)
      ->type_name("BYTES");
}

void add_duration(CLI::App& app, const char* names, std::chrono::milliseconds& value, const char* text) {
  app.add_option_function<std::string>(
         names,
         [names, &value](const std::string& word) {
           const auto duration = parse_duration(word);
           if (!duration) throw CLI::ValidationError(names, no_duration(word));
           value = *duration;
         },
         text)
      ->type_name("TIME");
}

void add_sizes(CLI::App& app, BenchOptions& options) {
  add_bytes(app, "-b,--minbytes", options.min_bytes, "smallest message (default 8)");
  add_bytes(app, "-e,--maxbytes", options.max_bytes,
            "largest message (default 32M, or -b where that is more)");
  app.add_option("-f,--stepfactor", options.step_factor, "factor between two sizes; 1: use -i")
      ->check([](const std::string& text) { return range_error(text, 1.0, 1e12, false); })
      ->capture_default_str();
  add_bytes(app, "-i,--stepbytes", options.step_bytes, "bytes added from one size to the next");
  app.add_option("-n,--iters", options.iterations, "measured operations of each size")
      ->check([](const std::string& text) { return range_error(text, 1, 10'000'000, true); })
      ->capture_default_str();
  app.add_option("-w,--warmup-iters", options.warmup, "warm-up operations of each size")
      ->check([](const std::string& text) { return range_error(text, 0, 10'000'000, true); })
      ->capture_default_str();
  app.add_option("-c,--check", options.check, "1: check every element of a result; 0: do not check")
      ->check([](const std::string& text) { return range_error(text, 0, 10'000'000, true); })
      ->capture_default_str();
}

void add_options(CLI::App& app, BenchOptions& options) {
  app.add_option_function<std::string>(
         "operation",
         [&options](const std::string& word) {
           const auto found = kOperations.find(word);
           if (found == kOperations.end()) {
             throw CLI::ValidationError("unknown operation \"" + word +
                                        "\" (allreduce, allgather, reducescatter, broadcast, pairs)");
           }
           options.operation = found->second;
         },
         "allreduce, allgather, reducescatter, broadcast, or pairs: every rank with every other, in rounds "
         "of "
         "disjoint pairs, bandwidth at -e (default 4M) and latency")
      ->type_name("")
      ->required();
  add_sizes(app, options);
  app.add_option("--min-busbw", options.min_busbw,
                 "exit code 1 if the largest message, or any pair, is below this bus bandwidth in GB/s")
      ->check([](const std::string& text) { return range_error(text, 0.0, 1e9, false); })
      ->type_name("GB/S");
  app.add_option("--json", options.json, "file for the result, written by rank 0")->type_name("FILE");
  app.add_option_function<std::string>(
         "--comm",
         [&options](const std::string& word) {
           const auto found = kBackends.find(word);
           if (found == kBackends.end())
             throw CLI::ValidationError("unknown --comm \"" + word + "\" (auto, tcp, shm, nccl)");
           options.comm = found->second;
         },
         "auto: shared memory inside a node, TCP between nodes; tcp; shm; nccl: between GPUs "
         "(default auto)")
      ->type_name("BACKEND");
  app.add_flag("--share-gpu", options.share_gpu, "with --comm nccl: several ranks use one GPU, for tests");
  add_duration(app, "-T,--comm-timeout,--timeout", options.comm_timeout,
               "give up when a peer moves no byte for this long (default 60s)");
  add_fixed(app);
}

/// Derives sizes that were not given from the given ones. Returns the contradiction as text; empty: none.
std::string complete(const CLI::App& app, BenchOptions& options) {
  const bool pairs = options.operation == BenchOperation::kPairs;
  const bool least = app.count("-b") != 0, most = app.count("-e") != 0;
  if (!most) {
    options.max_bytes = pairs ? kDefaultOfPairs : kDefaultMost;
    if (least && (pairs || options.min_bytes > options.max_bytes)) options.max_bytes = options.min_bytes;
  }
  if (!least) options.min_bytes = std::min(options.min_bytes, options.max_bytes);
  if (options.min_bytes > options.max_bytes) {
    return "-b is larger than -e: " + std::to_string(options.min_bytes) + " and " +
           std::to_string(options.max_bytes) + " bytes";
  }
  if (options.step_factor > 1 && options.step_factor < kLeastFactor) return "-f must be 1, or at least 1.01";
  if (options.step_factor > 1 && app.count("-f") != 0) options.step_bytes = 0;  // as nccl-tests has it
  if (options.step_factor <= 1 && options.step_bytes == 0) options.step_bytes = kDefaultStep;
  const double span = static_cast<double>(options.max_bytes - options.min_bytes);
  if (options.step_bytes != 0 && span / static_cast<double>(options.step_bytes) > kMostSizes) {
    return "-i: from " + std::to_string(options.min_bytes) + " to " + std::to_string(options.max_bytes) +
           " bytes in steps of " + std::to_string(options.step_bytes) +
           " are more than 10000 sizes; use a larger -i, or -f 2";
  }
  if (pairs && options.comm == CommKind::kNccl)
    return "bench pairs uses shared memory and TCP, not NCCL; remove --comm nccl";
  if (options.share_gpu && options.comm != CommKind::kNccl) return "--share-gpu requires --comm nccl";
  return "";
}

}  // namespace

ParsedBenchOptions parse_bench_options(int argc, const char* const* argv) {
  BenchOptions options;
  CLI::App app(
      "Measures the communication between ranks, with the options and the output table of nccl-tests.",
      "train bench");
  add_options(app, options);
  try {
    auto words = reversed_arguments(argc, argv);
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return {std::nullopt, app.exit(error) == 0 ? 0 : kUsageExit};
  }
  if (const std::string problem = complete(app, options); !problem.empty()) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return {std::nullopt, kUsageExit};
  }
  return {options, 0};
}

EqualOptions equal_options(const BenchOptions& options) {
  return {{"the operation", operation_name(options.operation)},
          {"-b", std::to_string(options.min_bytes)},
          {"-e", std::to_string(options.max_bytes)},
          {"-f", value_text(options.step_factor)},
          {"-i", std::to_string(options.step_bytes)},
          {"-n", std::to_string(options.iterations)},
          {"-w", std::to_string(options.warmup)},
          {"-c", options.check != 0 ? "1" : "0"},
          {"--json", given_text(!options.json.empty())}};
}

std::vector<std::size_t> message_sizes(const BenchOptions& options, std::size_t least) {
  std::vector<std::size_t> sizes;
  const double most = static_cast<double>(options.max_bytes) * 1.0001;
  for (double size = static_cast<double>(options.min_bytes); size <= most;) {
    const std::size_t whole = std::max(least, static_cast<std::size_t>(std::llround(size)) / least * least);
    if (sizes.empty() || sizes.back() != whole) sizes.push_back(whole);
    size =
        options.step_bytes != 0 ? size + static_cast<double>(options.step_bytes) : size * options.step_factor;
  }
  return sizes;
}

}  // namespace ddp::train
