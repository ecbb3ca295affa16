#include "apps/train/bench/bench_options.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "apps/options/option_table.h"
#include "apps/train/bench/bench_operation.h"
#include "base/format_text.h"

namespace ddp::train {

namespace {

constexpr std::size_t kDefaultMost = 32u << 20;
constexpr std::size_t kDefaultOfPairs = 4u << 20;
constexpr std::size_t kDefaultStep = 1u << 20;  // as in nccl-tests for -f 1
constexpr double kLeastFactor = 1.01;
constexpr double kMostSizes = 10'000;
constexpr double kMostRuns = 10'000'000;
constexpr const char* kBenchUsage =
    "usage: train bench OPERATION [OPTION…]\n"
    "Measures the communication between ranks, with the options and the output table of nccl-tests.\n";

std::optional<BenchOperation> find_operation(std::string_view word) {
  for (const auto& [name, kind] : bench_operations())
    if (word == name) return kind;
  return std::nullopt;
}

/// Returns "allreduce, … or pairs".
std::string operations_text() {
  return join_alternatives(words_of(bench_operations()));
}

/// Options of nccl-tests with only one possible value here. A value that changes nothing is accepted; others
/// are refused.
struct FixedOption {
  const char* names;
  const char* taken;  ///< accepted words between '|'; empty: any
  const char* instead;
};
constexpr FixedOption kFixed[] = {
    {"-t,--nthreads", "1", "a rank is one thread; start more ranks with --nproc-per-node"},
    {"-g,--ngpus", "0|1", "a rank uses one GPU at most; start more ranks with --nproc-per-node"},
    {"-o,--op", "sum", "only sum is measured"},
    {"-d,--datatype", "float", "only float is measured"},
    {"-r,--root", "0", "rank 0 is the root"},
    {"-m,--agg-iters", "1", "operations are not aggregated"},
    {"-N,--run-cycles", "1", "run the program again for another cycle"},
    {"-a,--average", "1", "the time is the mean over the ranks"},
    {"-G,--cudagraph", "0", "over NCCL, operations are put into graphs without this option"},
    {"-p,--parallel-init", "", ""},
    {"-z,--blocking", "", ""},
    {"-y,--stream-null", "", ""},
    {"-C,--report-cputime", "0", "only wall-clock time is reported"},
    {"-R,--local-register", "", ""},
};

void declare_fixed(OptionTable& table) {
  table.group("Options of nccl-tests with one possible value",
              "A value that changes nothing is accepted; any other is refused.");
  for (const FixedOption& fixed : kFixed) {
    const auto read = [&fixed](const std::string& word) {
      const std::string words = '|' + std::string(fixed.taken) + '|';
      const bool is_taken = *fixed.taken == '\0' || words.find('|' + word + '|') != std::string::npos;
      return is_taken ? "" : ": " + std::string(fixed.instead);
    };
    table.value({.names = fixed.names,
                 .value = *fixed.taken != '\0' ? fixed.taken : "N",
                 .help = *fixed.instead != '\0' ? fixed.instead : "accepted, without effect"},
                read);
  }
}

void declare_sizes(OptionTable& table, BenchOptions& options) {
  table.group(
      "Sizes",
      "Sizes are bytes: `8`, `64K`, `1.5M`, `1G`. A rank needs memory for the largest message, for two "
      "with `pairs`. Over NCCL the host and the GPU need as much each.");
  table.value({.names = "-b,--minbytes", .value = "BYTES", .help = "smallest message", .equal = true},
              size_into(options.min_bytes, 1));
  table.value({.names = "-e,--maxbytes",
               .value = "BYTES",
               .default_text = "32M, or -b if that is larger; 4M with pairs",
               .help = "largest message",
               .equal = true},
              size_into(options.max_bytes, 1));
  table.value({.names = "-f,--stepfactor",
               .value = "F",
               .help = "factor between two sizes; 1: use -i",
               .equal = true},
              number_into(options.step_factor, 1, 1e12));
  table.value({.names = "-i,--stepbytes",
               .value = "BYTES",
               .default_text = "1M with -f 1",
               .help = "bytes added from one size to the next",
               .details = "Without `-f`, or with `-f 1`. At most 10,000 sizes.",
               .equal = true},
              size_into(options.step_bytes, 1));
}

void declare_runs(OptionTable& table, BenchOptions& options) {
  table.group("Measurement");
  table.value(
      {.names = "-n,--iters", .value = "N", .help = "measured operations of each size", .equal = true},
      number_into(options.iterations, 1, kMostRuns));
  table.value(
      {.names = "-w,--warmup-iters", .value = "N", .help = "warm-up operations of each size", .equal = true},
      number_into(options.warmup, 0, kMostRuns));
  table.value({.names = "-c,--check",
               .value = "N",
               .help = "1: check every element of a result; 0: do not check",
               .details = "The elements of one result of each size are compared with the exact sum.",
               .equal = true},
              number_into(options.check, 0, kMostRuns));
  table.value(
      {.names = "--min-busbw",
       .value = "GB/S",
       .default_text = "none",
       .help = "exit code 1 if the largest message, or any pair, is below this bus bandwidth in GB/s"},
      number_into(options.min_busbw, 0, 1e9));
  table.value({.names = "--json",
               .value = "FILE",
               .help = "file for the result, written by rank 0",
               .details = "[Records](acceptance.md#records) describes it.",
               .completion = Completion::kFile,
               .equal = true},
              text_into(options.json));
}

void declare_options(OptionTable& table, BenchOptions& options) {
  table.group("Operation", "", "train bench allreduce -b 1M -e 1G -f 4");
  table.value({.names = "OPERATION",
               .help = "the collective to measure: " + operations_text(),
               .details = "`pairs` sends between every two ranks, in rounds of disjoint pairs.",
               .words = words_of(bench_operations())},
              parsed_into(options.operation, find_operation, ": give " + operations_text()));
  declare_sizes(table, options);
  declare_runs(table, options);
  table.group("Communication");
  declare_backend(table, "shared memory inside a node, TCP between nodes", options.comm, options.share_gpu,
                  options.comm_timeout, "-T,--comm-timeout,--timeout");
  declare_fixed(table);
  declare_help(table);
}

/// Derives sizes that were not given from the given ones. Returns the contradiction as text; empty: none.
std::string complete(const OptionTable& table, BenchOptions& options) {
  if (!table.given("OPERATION")) return "name an operation: " + operations_text();
  const bool pairs = options.operation == BenchOperation::kPairs;
  const bool least = table.given("-b"), most = table.given("-e");
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
  if (options.step_factor > 1 && table.given("-f")) options.step_bytes = 0;  // as nccl-tests has it
  if (options.step_factor <= 1 && options.step_bytes == 0) options.step_bytes = kDefaultStep;
  const double span = static_cast<double>(options.max_bytes - options.min_bytes);
  if (options.step_bytes != 0 && span / static_cast<double>(options.step_bytes) > kMostSizes) {
    return "-i: from " + std::to_string(options.min_bytes) + " to " + std::to_string(options.max_bytes) +
           " bytes in steps of " + std::to_string(options.step_bytes) +
           " are more than 10000 sizes; use a larger -i, or -f 2";
  }
  if (pairs && options.comm == CommKind::kNccl)
    return "pairs uses shared memory and TCP, not NCCL; remove --comm nccl";
  if (options.share_gpu && options.comm != CommKind::kNccl) return "--share-gpu requires --comm nccl";
  return "";
}

}  // namespace

std::vector<OptionGroup> bench_option_groups() {
  return option_groups<BenchOptions>(declare_options);
}

ParsedCommand<BenchOptions> parse_bench_options(int argc, const char* const* argv) {
  return parse_command<BenchOptions>("train bench", kBenchUsage, declare_options, complete, argc, argv);
}

EqualOptions equal_options(BenchOptions options) {
  OptionTable table("");
  declare_options(table, options);
  EqualOptions list = equal_options(table);
  list.push_back({"the operation", operation_name(options.operation)});
  return list;
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
