#include "apps/train/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "apps/options/option_table.h"
#include "apps/train/bench/measurement.h"
#include "apps/train/checkpoint/model_file.h"
#include "apps/train/collectives/nccl/nccl_world.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/training/run_output.h"
#include "apps/train/world/node_data.h"
#include "apps/train/world/world.h"
#include "base/result.h"
#include "base/text.h"

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
      "out of place. Over NCCL the host and the GPU need as much each.");
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

std::vector<std::pair<std::string, NumberType>> number_words() {
  std::vector<std::pair<std::string, NumberType>> words;
  for (const NumberType type : {NumberType::kFloat32, NumberType::kBfloat16, NumberType::kFloat16})
    words.emplace_back(type_text(type), type);
  return words;
}

/// Returns what only NCCL can measure of it: "alltoall is measured over NCCL only"; empty: nothing.
std::string only_over_nccl(const BenchOptions& options) {
  using enum BenchOperation;
  const bool between_gpus = options.operation == kAllToAll || options.operation == kSendReceive;
  const std::string what = options.type != NumberType::kFloat32 ? "-d " + std::string(type_text(options.type))
                           : options.out_of_place               ? "--out-of-place"
                           : between_gpus                       ? operation_name(options.operation)
                                                                : "";
  return what.empty() ? "" : what + " is measured over NCCL only";
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
               .help = "operations of each size whose result is checked; 0: none",
               .details = "Every element is compared with its exact value.",
               .equal = true},
              number_into(options.check, 0, kMostRuns));
  table.choice<NumberType>({.names = "-d,--datatype",
                            .help = "type of the elements; bfloat16 and half: only over NCCL",
                            .equal = true},
                           options.type, number_words());
  table.flag(
      {.names = "--out-of-place",
       .help = "send from one buffer and receive in another; only over NCCL",
       .details = "`alltoall`, `sendrecv` and `pairs` always do. A rank needs memory for two messages.",
       .equal = true},
      options.out_of_place);
  table.value(
      {.names = "--min-busbw",
       .value = "GB/S",
       .default_text = "none",
       .help = "exit code 1 if the largest message, or any pair, is below this bus bandwidth in GB/s"},
      number_into(options.min_busbw, 0, 1e9));
  declare_json(table, options.json);
}

void declare_options(OptionTable& table, BenchOptions& options) {
  table.group("Operation", "", "train bench allreduce -b 1M -e 1G -f 4");
  table.value(
      {.names = "OPERATION",
       .help = "the collective to measure: " + operations_text(),
       .details =
           "`pairs` sends between every two ranks, in rounds of disjoint pairs. `sendrecv` sends from each "
           "rank to the next one; it and `alltoall` are measured over NCCL only.",
       .words = words_of(bench_operations())},
      parsed_into(options.operation, find_operation, ": give " + operations_text()));
  declare_sizes(table, options);
  declare_runs(table, options);
  table.group("Communication");
  table.choice<DeviceKind>(
      {.names = "--device",
       .help = "whose memory the messages are in; auto: the GPUs' if any rank sees one, else "
               "the host's",
       .details = "A visible GPU that cannot be used is an error. `--comm tcp` and `shm` "
                  "mean the host's memory.",
       .equal = true},
      options.device, device_words());
  declare_backend(table, "NCCL between GPUs; else shared memory inside a node, TCP between nodes", options,
                  "-T,--comm-timeout,--timeout");
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
  const bool host = options.comm == CommKind::kTcp || options.comm == CommKind::kShm;
  if (host && options.device == DeviceKind::kGpu)
    return std::string("--comm ") + comm_text(options.comm) + " needs the host's memory; remove --device gpu";
  if (options.device == DeviceKind::kCpu && options.comm == CommKind::kNccl)
    return "--comm nccl needs the GPUs' memory; remove --device cpu";
  if (host) options.device = DeviceKind::kCpu;
  if (const std::string only = only_over_nccl(options); !only.empty()) {
    if (options.device == DeviceKind::kCpu) return only;
    if (pairs) return "pairs sends bytes, out of place; remove -d and --out-of-place";
  }
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

namespace {

Result<> measure_all(const BenchOptions& options, const WorkerEnvironment& environment, CommWorld& world,
                     BenchReport& report) {
  const bool speaks = environment.rank == 0;
  if (options.operation == BenchOperation::kPairs) {
    report.pair_bytes = options.max_bytes;
    Communicator& ranks = *world.communicator;
    Communicator* const gpus = ranks.has_device_operations() ? &ranks : nullptr;
    report.pairs = DDP_TRY(measure_pairs(options, environment, world, gpus));
    if (gpus != nullptr) report.groups = DDP_TRY(measure_groups(options, environment, *gpus));
    if (speaks) print_out("%s", pairs_text(report).c_str());
    return {};
  }
  const auto sizes =
      message_sizes(options, size_of(options.type) * parts_of(options.operation, report.world));
  const auto memory =
      DDP_TRY(BenchMemory::make(*world.communicator, memory_of(options, std::ranges::max(sizes))));
  report.buffers = memory->registration();
  if (speaks) print_out("%s", table_head(report).c_str());
  for (const std::size_t bytes : sizes) {
    auto row = DDP_TRY(measure_row(options, *memory, bytes));
    if (speaks) print_out("%s", table_line(report, row).c_str());
    report.rows.push_back(row);
  }
  if (speaks) print_out("%s", table_foot(report).c_str());
  return {};
}

/// Returns why this host or its GPU has no room for the largest message of its ranks; empty: there is room. A
/// GPU's ranks need the room on the host as well, for the copy that is filled and compared.
std::string lacking_room(const BenchOptions& options, const WorkerEnvironment& environment) {
  const auto sizes = options.operation == BenchOperation::kPairs
                         ? std::vector<std::size_t>{options.max_bytes}
                         : message_sizes(options, size_of(options.type) *
                                                      parts_of(options.operation, environment.world_size));
  const std::size_t each = memory_of(options, std::ranges::max(sizes));
  const std::string what = operation_name(options.operation) + std::string(": messages of ") +
                           std::to_string(sizes.back()) + " bytes need ";
  const std::string instead = "; write a smaller -b or -e";
  const std::string lacks = lacking_memory(each, environment.local_world_size);
  if (!lacks.empty()) return what + lacks + instead;
  if (options.comm != CommKind::kNccl) return "";
  const auto gpu = nccl_gpu_memory(environment.local_rank, environment.local_world_size, options.share_gpu);
  if (!gpu) return gpu.error().text;
  // The groups of measure_groups() have memory of their own.
  const std::size_t on_gpu = options.operation == BenchOperation::kPairs ? 2 * each : each;
  if (gpu->bytes >= on_gpu) return "";
  return what + format_bytes(on_gpu) + " of " + gpu->name + ", which has " + format_bytes(gpu->bytes) +
         " for a rank" + instead;
}

/// Returns an error that is visible before anything starts; empty: none.
std::string contradiction(const BenchOptions& options, const WorkerEnvironment& environment,
                          const TrainOptions& world) {
  if (options.operation == BenchOperation::kPairs && environment.world_size < 2)
    return "pairs needs at least two ranks";
  const auto possible = can_join(environment, world);
  return possible ? lacking_room(options, environment) : possible.error().text;
}

}  // namespace

int run_bench(int argc, const char* const* argv) {
  const auto parsed = parse_bench_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  BenchOptions options = *parsed.options;
  auto environment = read_worker_environment(::getenv);
  if (!environment) return fail(environment.error().text);
  environment->collectives.clear();  // a flight recorder would be part of what is measured
  TrainOptions choosing;             // the ranks choose as in a training
  static_cast<BackendOptions&>(choosing) = options;
  const std::string problem = contradiction(options, *environment, choosing);
  if (!problem.empty()) return refuse("train bench", {problem});
  WorldOptions wanted;
  wanted.remark = "# ";
  auto world = join_world(*environment, choosing, wanted);
  if (!world) return fail(world.error().text);
  if (environment->world_size == 1 && world->choice.device == DeviceKind::kGpu)
    return fail(
        "one rank has no other GPU to send to: start one rank per GPU; train health tests one GPU, "
        "--device cpu measures this host's memory");
  Communicator& ranks = *world->communicator;
  if (auto equal = check_equal(ranks, equal_options(options)); !equal) return fail(equal.error().text);
  if (const std::string only = only_over_nccl(options); !only.empty() && world->backend != "nccl")
    return fail(only);
  if (options.comm != world->choice.comm) {  // NCCL was chosen
    options.comm = world->choice.comm;
    const std::string lacks = lacking_room(options, *environment);
    const Result<> fits = lacks.empty() ? Result<>() : Error{ErrorCode::kUsage, lacks};
    if (auto done = share_outcome(ranks, fits); !done) return fail(done.error().text);
  }
  if (!options.json.empty()) {
    const auto writable = environment->rank == 0 ? check_output_path("--json", options.json) : Result<>();
    if (auto done = share_outcome(ranks, writable); !done) return fail(done.error().text);
  }

  BenchReport report;
  report.operation = options.operation;
  report.world = environment->world_size;
  report.nodes = world->node_count;
  report.backend = world->backend;
  report.type = type_text(options.type);
  report.out_of_place = options.out_of_place;
  report.compared = options.check != 0;
  report.min_busbw = options.min_busbw;
  if (auto done = measure_all(options, *environment, *world, report); !done) return fail(done.error().text);
  // Is also a barrier: the other ranks wait here until rank 0 has printed its table.
  const auto device = world->backend == "nccl" ? DeviceKind::kGpu : DeviceKind::kCpu;
  auto tested = tested_line(*environment, ranks, device, world->backend);
  if (!tested) return fail(tested.error().text);
  if (environment->rank != 0) return 0;
  report.tested = std::move(*tested);
  print_out("# %s\n", report.tested.c_str());
  if (!options.json.empty()) {
    if (auto done = write_report(options.json, report_json(report)); !done) return fail(done.error().text);
  }
  const std::string fault = verdict(report);
  return fault.empty() ? 0 : fail(fault);
}

}  // namespace ddp::train
