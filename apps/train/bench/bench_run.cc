#include "apps/train/bench/bench_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/bench/bench_operation.h"
#include "apps/train/bench/bench_options.h"
#include "apps/train/checkpoint/model_file.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/nccl/nccl_world.h"
#include "apps/train/training/run_output.h"
#include "apps/train/world/host_memory.h"
#include "apps/train/world/world.h"
#include "base/format_text.h"

namespace ddp::train {

namespace {

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
  for (int i = 0; i < warmup; ++i) {
    if (auto done = run(); !done) return done.error();
  }
  std::vector<double> each;
  each.reserve(static_cast<std::size_t>(iterations));
  const auto begin = Clock::now();
  auto last = begin;
  for (int i = 0; i < iterations; ++i) {
    if (auto done = run(); !done) return done.error();
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
  if (auto done = operation.replay(each); !done) return done.error();  // captures the graph
  const auto begin = Clock::now();
  for (int i = 0; i < graphs; ++i) {
    if (auto done = operation.replay(each); !done) return done.error();
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / (graphs * each);
}

/// Measures after a barrier.
Result<Times> measure(MeasuredOperation& operation, const BenchOptions& options, bool on_device) {
  const auto each = [&] { return on_device ? operation.replay(1) : operation.run(); };
  auto times = measure_each(each, std::max(options.warmup, on_device ? 1 : 0), options.iterations);
  if (!times || !on_device) return times;
  const auto mean = mean_in_graphs(operation, options.iterations);
  if (!mean) return mean.error();
  times->mean = *mean;
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
  if (auto done = operation.fill(); !done) return done.error();
  if (auto done = operation.run(); !done) return done.error();
  if (options.check != 0) {
    const auto found = operation.wrong();
    if (!found) return found.error();
    wrong = *found;
  }
  if (auto done = communicator.barrier(); !done) return done.error();
  const auto times = measure(operation, options, memory.device() != nullptr);
  if (!times) return times.error();
  const std::uint64_t mine[] = {nanoseconds(times->mean), nanoseconds(times->p50), nanoseconds(times->p99),
                                wrong};
  const auto all = communicator.all_gather(mine);
  if (!all) return all.error();
  row.wrong = options.check != 0 ? 0 : -1;
  for (std::size_t i = 0; i < all->size(); i += 4) {
    row.mean_us += static_cast<double>((*all)[i]) / 1e3 / communicator.world_size();
    row.p50_us = std::max(row.p50_us, static_cast<double>((*all)[i + 1]) / 1e3);
    row.p99_us = std::max(row.p99_us, static_cast<double>((*all)[i + 2]) / 1e3);
    if (options.check != 0) row.wrong += static_cast<std::int64_t>((*all)[i + 3]);
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
  auto two = join_pair(environment, world_options, *world.directory, pair, same_node);
  if (!two) return two.error();
  PairResult result{pair.first, pair.second, same_node, 0, 0};
  std::vector<std::byte> small(2 * kLatencyBytes);
  const auto latency =
      measure_each([&] { return (*two)->all_gather_parts(small); }, options.warmup, 10 * options.iterations);
  if (!latency) return latency.error();
  std::vector<std::byte> large(2 * options.max_bytes);
  const auto time =
      measure_each([&] { return (*two)->all_gather_parts(large); }, options.warmup, options.iterations);
  if (!time) return time.error();
  result.latency_us = latency->p50;
  result.bandwidth = static_cast<double>(options.max_bytes) / (time->p50 * 1e3);
  if (auto done = (*two)->barrier(); !done) return done.error();
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
      const auto result = measure_pair(options, environment, world_options, world, pair, same_node);
      if (!result) return result.error();
      mine[0] = same_node;
      mine[1] = nanoseconds(result->latency_us);
      mine[2] = static_cast<std::uint64_t>(result->bandwidth * 1e6);
    }
    const auto all = communicator.all_gather(mine);  // is also a barrier: rounds do not overlap
    if (!all) return all.error();
    for (const auto& pair : round) {
      const std::uint64_t* gathered = all->data() + 3 * static_cast<std::size_t>(pair.first);
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

Result<> write_json(const std::string& path, const BenchReport& report) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return system_error(errno, "open " + path);
  const std::string text = report_json(report);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) return system_error(errno, "write " + path);
  return {};
}

Result<> measure_all(const BenchOptions& options, const WorkerEnvironment& environment,
                     const WorldOptions& world_options, CommWorld& world, BenchReport& report) {
  const bool speaks = environment.rank == 0;
  if (options.operation == BenchOperation::kPairs) {
    report.pair_bytes = options.max_bytes;
    if (auto done = measure_pairs(options, environment, world_options, world, report); !done) return done;
    if (speaks) print_out("%s", pairs_text(report).c_str());
    return {};
  }
  const auto sizes = message_sizes(options, sizeof(float) * parts_of(options.operation, report.world));
  const auto memory = BenchMemory::make(*world.communicator, most_bytes(options, sizes));
  if (!memory) return memory.error();
  report.buffers = (*memory)->registration();
  if (speaks) print_out("%s", table_head(report).c_str());
  for (const std::size_t bytes : sizes) {
    auto row = measure_row(options, **memory, bytes);
    if (!row) return row.error();
    if (speaks) print_out("%s", table_line(report, *row).c_str());
    report.rows.push_back(*row);
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
    if (auto done = write_json(options.json, report); !done) return fail(done.error().text);
  }
  const std::string fault = verdict(report);
  return fault.empty() ? 0 : fail(fault);
}

}  // namespace ddp::train
