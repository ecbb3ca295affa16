#include "apps/train/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "apps/options/option_table.h"
#include "apps/train/checkpoint/model_file.h"
#include "apps/train/collectives/nccl/nccl_world.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
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

namespace {

/// Sums of these values over any number of ranks are exact in float32.
float value_of(int rank, std::size_t index) {
  return static_cast<float>((rank % 64) + 1 + static_cast<int>(index % 7));
}

double sum_of(int world, std::size_t index) {
  double sum = 0;
  for (int rank = 0; rank < world; ++rank)
    sum += static_cast<double>(value_of(rank, index));
  return sum;
}

CollectiveKind device_kind(BenchOperation kind) {
  using Kind = CollectiveKind;
  return kind == BenchOperation::kAllGather       ? Kind::kAllGather
         : kind == BenchOperation::kReduceScatter ? Kind::kReduceScatter
         : kind == BenchOperation::kBroadcast     ? Kind::kBroadcast
                                                  : Kind::kAllReduce;
}

/// Memory in which the operations of a bench work in place: the GPU's memory if the communicator has
/// operations there. Otherwise memory that the ranks of a node share, like a training's gradients, or this
/// rank's own memory. It is kept for all sizes. The communicator must outlive it.
class BenchMemory {
 public:
  /// All ranks call it with the same size.
  static Result<std::unique_ptr<BenchMemory>> make(Communicator& communicator, std::size_t bytes) {
    std::unique_ptr<BenchMemory> memory(new BenchMemory(communicator));
    const std::size_t count = bytes / sizeof(float);
    if (communicator.has_device_operations()) {
      memory->device_ = DDP_TRY(DeviceBuffer::make(communicator, bytes));
      memory->values_ = std::span(reinterpret_cast<float*>(memory->device_->memory().bytes.data()), count);
    } else if (const auto shared = communicator.share_memory(bytes); !shared.empty()) {
      memory->values_ = std::span(reinterpret_cast<float*>(shared.data()), count);
    } else {
      try {
        memory->own_ = AlignedBuffer<float>(count);
      } catch (const std::bad_alloc&) {  // a limit of the process, or other processes were faster
        return Error{ErrorCode::kSystem, "this process cannot allocate " + format_bytes(bytes) +
                                             " of memory for the messages; write a smaller -b or -e"};
      }
      memory->values_ = memory->own_.span();
    }
    return memory;
  }

  Communicator& communicator() const { return communicator_; }
  /// Null: the buffer is in host memory.
  DeviceBuffer* device() const { return device_.get(); }
  std::span<float> values() const { return values_; }
  /// Returns "symmetric windows", "registered" or "not registered"; empty for host memory.
  std::string registration() const {
    if (device_ == nullptr) return "";
    switch (device_->memory().registration) {
      case DeviceMemory::RegistrationKind::kWindow:
        return "symmetric windows";
      case DeviceMemory::RegistrationKind::kRegistered:
        return "registered";
      case DeviceMemory::RegistrationKind::kNone:
        break;
    }
    return "not registered";
  }

 private:
  explicit BenchMemory(Communicator& communicator) : communicator_(communicator) {}

  Communicator& communicator_;
  std::unique_ptr<DeviceBuffer> device_;
  AlignedBuffer<float> own_;
  std::span<float> values_;
};

/// One operation on a buffer of floats; nccl-tests' "size" is `bytes` of it.
class MeasuredOperation {
 public:
  /// The operation works in `memory`, which must outlive it.
  MeasuredOperation(BenchOperation kind, BenchMemory& memory, std::size_t bytes)
      : kind_(kind),
        memory_(memory),
        rank_(memory.communicator().rank()),
        world_(memory.communicator().world_size()),
        count_(bytes / sizeof(float)) {
    const auto world = static_cast<std::size_t>(world_);
    if (kind == BenchOperation::kAllGather || kind == BenchOperation::kReduceScatter)
      count_ = count_ / world * world;
    buffer_ = memory.values().first(count_);
    if (memory.device() != nullptr)
      memory.device()->choose({device_kind(kind), buffer_.data(), count_, NumberType::kFloat32, 0});
  }

  std::size_t count() const { return count_; }
  Result<> fill() {
    DeviceBuffer* const device = memory_.device();
    std::vector<float> copy(device != nullptr ? buffer_.size() : 0);
    const std::span<float> values = device != nullptr ? std::span(copy) : buffer_;
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = value_of(rank_, i);
    return device != nullptr ? device->put(std::as_bytes(values)) : Result<>();
  }

  Result<> run() {
    if (memory_.device() != nullptr) return memory_.device()->run();
    Communicator& communicator = memory_.communicator();
    const auto bytes = std::as_writable_bytes(buffer_);
    switch (kind_) {
      case BenchOperation::kAllReduce:
        return communicator.all_reduce_sum(buffer_);
      case BenchOperation::kAllGather:
        return communicator.all_gather_parts(bytes);
      case BenchOperation::kReduceScatter:
        return communicator.reduce_scatter_sum(buffer_);
      case BenchOperation::kBroadcast:
        return communicator.broadcast(bytes, 0);
      case BenchOperation::kPairs:
        break;
    }
    return {};
  }

  /// Carries out the operation `count` times without a pause of the GPU; only in GPU memory.
  Result<> replay(int count) { return memory_.device()->replay(count); }
  /// Returns the number of wrong elements after fill() and one operation.
  Result<std::uint64_t> wrong() {
    DeviceBuffer* const device = memory_.device();
    std::vector<float> copy(device != nullptr ? buffer_.size() : 0);
    if (device != nullptr) DDP_TRY(device->get(std::as_writable_bytes(std::span(copy))));
    const std::span<const float> values = device != nullptr ? std::span<const float>(copy) : buffer_;
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      wrong += is_result(i) && static_cast<double>(values[i]) != expected(i);
    return wrong;
  }

 private:
  double expected(std::size_t place) const {
    const std::size_t part = std::max<std::size_t>(count_ / static_cast<std::size_t>(world_), 1);
    switch (kind_) {
      case BenchOperation::kAllReduce:
      case BenchOperation::kReduceScatter:
        return sum_of(world_, place);
      case BenchOperation::kAllGather:
        return static_cast<double>(value_of(static_cast<int>(place / part), place));
      case BenchOperation::kBroadcast:
        return static_cast<double>(value_of(0, place));
      case BenchOperation::kPairs:
        break;
    }
    return 0;
  }

  bool is_result(std::size_t place) const {
    const std::size_t part = std::max<std::size_t>(count_ / static_cast<std::size_t>(world_), 1);
    return kind_ != BenchOperation::kReduceScatter || place / part == static_cast<std::size_t>(rank_);
  }

  BenchOperation kind_;
  BenchMemory& memory_;
  int rank_;
  int world_;
  std::size_t count_ = 0;
  std::span<float> buffer_;  ///< in `memory`
};

using Clock = std::chrono::steady_clock;

constexpr int kFailed = 1;
constexpr std::size_t kLatencyBytes = 8;
constexpr std::size_t kMaxInFlight = std::size_t{1} << 30;  // bytes

int fail(const std::string& text) {
  std::fprintf(stderr, "train: %s\n", text.c_str());
  return kFailed;
}

struct Times {
  double mean = 0, p50 = 0, p99 = 0;  ///< microseconds
};

Result<Times> measure_each(const std::function<Result<>()>& run, int warmup, int iterations) {
  for (int i = 0; i < warmup; ++i)
    DDP_TRY(run());
  std::vector<double> each;
  each.reserve(static_cast<std::size_t>(iterations));
  const auto begin = Clock::now();
  auto last = begin;
  for (int i = 0; i < iterations; ++i) {
    DDP_TRY(run());
    const auto now = Clock::now();
    each.push_back(std::chrono::duration<double, std::micro>(now - last).count());
    last = now;
  }
  std::sort(each.begin(), each.end());
  const auto at = [&](double share) {
    return each[static_cast<std::size_t>(share * static_cast<double>(each.size() - 1))];
  };
  return Times{std::chrono::duration<double, std::micro>(last - begin).count() / iterations, at(0.5),
               at(0.99)};
}

/// Converts to whole nanoseconds for all_gather().
std::uint64_t nanoseconds(double microseconds) {
  return static_cast<std::uint64_t>(microseconds * 1e3);
}

/// Measures operations that follow each other without a pause of the GPU. A deadline counts from the start of
/// a wait, so one graph may not have all operations.
Result<double> mean_in_graphs(MeasuredOperation& operation, int count) {
  constexpr std::size_t kMost = 256;
  const std::size_t bytes = operation.count() * sizeof(float);
  const int most = static_cast<int>(std::clamp<std::size_t>(kMaxInFlight / bytes, 1, kMost));
  const int graphs = (count + most - 1) / most, each = (count + graphs - 1) / graphs;
  DDP_TRY(operation.replay(each));  // captures the graph
  const auto begin = Clock::now();
  for (int i = 0; i < graphs; ++i)
    DDP_TRY(operation.replay(each));
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / (graphs * each);
}

/// Measures after a barrier.
Result<Times> measure(MeasuredOperation& operation, const BenchOptions& options, bool on_device) {
  const auto each = [&] { return on_device ? operation.replay(1) : operation.run(); };
  auto times = measure_each(each, std::max(options.warmup, on_device ? 1 : 0), options.iterations);
  if (!times || !on_device) return times;
  times->mean = DDP_TRY(mean_in_graphs(operation, options.iterations));
  return times;
}

/// Returns into how many parts the ranks divide a message. nccl-tests' "count" is that of one part.
std::size_t parts_of(BenchOperation operation, int world) {
  const bool in_parts =
      operation == BenchOperation::kAllGather || operation == BenchOperation::kReduceScatter;
  return in_parts ? static_cast<std::size_t>(world) : 1;
}

Result<BenchRow> measure_row(const BenchOptions& options, BenchMemory& memory, std::size_t bytes) {
  Communicator& communicator = memory.communicator();
  MeasuredOperation operation(options.operation, memory, bytes);
  BenchRow row;
  row.count = operation.count() / parts_of(options.operation, communicator.world_size());
  row.bytes = operation.count() * sizeof(float);
  std::uint64_t wrong = 0;
  DDP_TRY(operation.fill());
  DDP_TRY(operation.run());
  if (options.check != 0) wrong = DDP_TRY(operation.wrong());
  DDP_TRY(communicator.barrier());
  const auto times = DDP_TRY(measure(operation, options, memory.device() != nullptr));
  const std::uint64_t mine[] = {nanoseconds(times.mean), nanoseconds(times.p50), nanoseconds(times.p99),
                                wrong};
  const auto all = DDP_TRY(communicator.all_gather(mine));
  row.wrong = options.check != 0 ? 0 : -1;
  for (std::size_t i = 0; i < all.size(); i += 4) {
    row.mean_us += static_cast<double>(all[i]) / 1e3 / communicator.world_size();
    row.p50_us = std::max(row.p50_us, static_cast<double>(all[i + 1]) / 1e3);
    row.p99_us = std::max(row.p99_us, static_cast<double>(all[i + 2]) / 1e3);
    if (options.check != 0) row.wrong += static_cast<std::int64_t>(all[i + 3]);
  }
  return row;
}

/// Bytes that a rank's buffer needs for the largest message.
std::size_t most_bytes(const BenchOptions& options, const std::vector<std::size_t>& sizes) {
  return *std::max_element(sizes.begin(), sizes.end()) *
         (options.operation == BenchOperation::kPairs ? 2 : 1);
}

/// Measures this rank's pair of one round on connections of its own.
Result<PairResult> measure_pair(const BenchOptions& options, const WorkerEnvironment& environment,
                                const WorldOptions& world_options, CommWorld& world, std::pair<int, int> pair,
                                bool same_node) {
  auto two = DDP_TRY(join_pair(environment, world_options, *world.directory, pair, same_node));
  PairResult result{pair.first, pair.second, same_node, 0, 0};
  std::vector<std::byte> small(2 * kLatencyBytes);
  const auto latency = DDP_TRY(
      measure_each([&] { return two->all_gather_parts(small); }, options.warmup, 10 * options.iterations));
  std::vector<std::byte> large(2 * options.max_bytes);
  const auto time =
      DDP_TRY(measure_each([&] { return two->all_gather_parts(large); }, options.warmup, options.iterations));
  result.latency_us = latency.p50;
  result.bandwidth = static_cast<double>(options.max_bytes) / (time.p50 * 1e3);
  DDP_TRY(two->barrier());
  return result;
}

Result<> measure_pairs(const BenchOptions& options, const WorkerEnvironment& environment,
                       const WorldOptions& world_options, CommWorld& world, BenchReport& report) {
  Communicator& communicator = *world.communicator;
  const int rank = communicator.rank();
  for (const auto& round : pair_rounds(communicator.world_size())) {
    std::uint64_t mine[] = {0, 0, 0};  // same node, ns, kilobytes per second
    for (const auto& pair : round) {
      if (pair.first != rank && pair.second != rank) continue;
      const bool same_node = world.same_node(pair.first, pair.second);
      const auto result = DDP_TRY(measure_pair(options, environment, world_options, world, pair, same_node));
      mine[0] = same_node;
      mine[1] = nanoseconds(result.latency_us);
      mine[2] = static_cast<std::uint64_t>(result.bandwidth * 1e6);
    }
    const auto all = DDP_TRY(communicator.all_gather(mine));  // is also a barrier: rounds do not overlap
    for (const auto& pair : round) {
      const std::uint64_t* gathered = all.data() + 3 * static_cast<std::size_t>(pair.first);
      report.pairs.push_back({pair.first, pair.second, gathered[0] != 0,
                              static_cast<double>(gathered[1]) / 1e3,
                              static_cast<double>(gathered[2]) / 1e6});
    }
  }
  std::sort(report.pairs.begin(), report.pairs.end(), [](const PairResult& a, const PairResult& b) {
    return std::pair(a.first, a.second) < std::pair(b.first, b.second);
  });
  return {};
}

Result<> measure_all(const BenchOptions& options, const WorkerEnvironment& environment,
                     const WorldOptions& world_options, CommWorld& world, BenchReport& report) {
  const bool speaks = environment.rank == 0;
  if (options.operation == BenchOperation::kPairs) {
    report.pair_bytes = options.max_bytes;
    DDP_TRY(measure_pairs(options, environment, world_options, world, report));
    if (speaks) print_out("%s", pairs_text(report).c_str());
    return {};
  }
  const auto sizes = message_sizes(options, sizeof(float) * parts_of(options.operation, report.world));
  const auto memory = DDP_TRY(BenchMemory::make(*world.communicator, most_bytes(options, sizes)));
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
  const auto sizes =
      options.operation == BenchOperation::kPairs
          ? std::vector<std::size_t>{options.max_bytes}
          : message_sizes(options, sizeof(float) * parts_of(options.operation, environment.world_size));
  const std::size_t each = most_bytes(options, sizes);
  const std::string what = operation_name(options.operation) + std::string(": messages of ") +
                           std::to_string(sizes.back()) + " bytes need ";
  const std::string instead = "; write a smaller -b or -e";
  const std::string lacks = lacking_memory(each, environment.local_world_size);
  if (!lacks.empty()) return what + lacks + instead;
  if (options.comm != CommKind::kNccl) return "";
  const auto gpu = nccl_gpu_memory(environment.local_rank, environment.local_world_size, options.share_gpu);
  if (!gpu) return gpu.error().text;
  if (gpu->bytes >= each) return "";
  return what + format_bytes(each) + " of " + gpu->name + ", which has " + format_bytes(gpu->bytes) +
         " for a rank" + instead;
}

/// Returns an error that is visible before anything starts; empty: none.
std::string contradiction(const BenchOptions& options, const WorkerEnvironment& environment,
                          const WorldOptions& world) {
  if (options.operation == BenchOperation::kPairs && environment.world_size < 2)
    return "pairs needs at least two ranks";
  const auto possible = can_join(environment, world);
  return possible ? lacking_room(options, environment) : possible.error().text;
}

}  // namespace

int run_bench(int argc, const char* const* argv) {
  const auto parsed = parse_bench_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const BenchOptions& options = *parsed.options;
  const auto environment =
      read_worker_environment([](const char* name) -> const char* { return std::getenv(name); });
  if (!environment) return fail(environment.error().text);
  WorldOptions world_options;
  world_options.comm = options.comm;
  world_options.step_timeout = options.comm_timeout;
  world_options.share_gpu = options.share_gpu;
  world_options.remark = "# ";
  const std::string problem = contradiction(options, *environment, world_options);
  if (!problem.empty()) return refuse("train bench", {problem});
  auto world = join_world(*environment, world_options);
  if (!world) return fail(world.error().text);
  if (auto equal = check_equal(*world->communicator, equal_options(options)); !equal)
    return fail(equal.error().text);
  if (!options.json.empty()) {
    const auto writable = environment->rank == 0 ? check_output_path("--json", options.json) : Result<>();
    if (auto done = share_outcome(*world->communicator, writable); !done) return fail(done.error().text);
  }

  BenchReport report;
  report.operation = options.operation;
  report.world = environment->world_size;
  report.nodes = world->node_count;
  report.backend = world->backend;
  report.min_busbw = options.min_busbw;
  if (auto done = measure_all(options, *environment, world_options, *world, report); !done)
    return fail(done.error().text);
  // The other ranks wait here until rank 0 has printed its table.
  if (auto done = world->communicator->barrier(); !done) return fail(done.error().text);
  if (environment->rank != 0) return 0;
  if (!options.json.empty()) {
    if (auto done = write_report(options.json, report_json(report)); !done) return fail(done.error().text);
  }
  const std::string fault = verdict(report);
  return fault.empty() ? 0 : fail(fault);
}

}  // namespace ddp::train
