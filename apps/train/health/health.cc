#include "apps/train/health/health.h"

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "apps/options/option_table.h"
#include "apps/train/checkpoint/model_file.h"
#include "apps/train/data/hash.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/health/checks/health_diagnosis.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/training/run_output.h"
#include "apps/train/world/node_data.h"
#include "apps/train/world/world.h"
#include "base/program.h"
#include "base/result.h"
#include "base/text.h"

namespace ddp::train {
namespace {

constexpr double kMostMemory = 16u << 20;  // MB, that is 16 TB
constexpr std::chrono::milliseconds kLeastTime{1};
constexpr const char* kHealthUsage =
    "usage: train health [TIME] [OPTION…]\n"
    "Tests the device of each rank, each pair of ranks and all ranks together: matrix products and memory\n"
    "with known results, messages and all-reduces. Exit code 1 if a test fails.\n";

/// Parses "RANK:gemm", "RANK:memory" or "RANK:sum".
std::optional<InjectedFault> parse_fault(std::string_view text) {
  InjectedFault inject;
  const char* end = text.data() + text.size();
  const auto rank = std::from_chars(text.data(), end, inject.rank);
  if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != ':' || inject.rank < 0) return std::nullopt;
  const std::string_view word(rank.ptr + 1, end);
  if (word == "gemm") {
    inject.fault = HealthFault::kGemm;
  } else if (word == "memory") {
    inject.fault = HealthFault::kMemory;
  } else if (word == "sum") {
    inject.fault = HealthFault::kSum;
  } else {
    return std::nullopt;
  }
  return inject;
}

void declare_tests(OptionTable& table, HealthOptions& options) {
  table.group("Tests", "", "train health 1m --memory 4096");
  table.value({.names = "TIME", .help = "duration of the matrix products", .equal = true},
              time_into(options.time, kLeastTime));
  table.value(
      {.names = "--memory",
       .value = "MB",
       .default_text = "256; on a GPU 98 % of the free memory",
       .help = "MiB of memory that each rank tests",
       .details = "On a CPU more than the host has is refused. Ranks that share a GPU divide its free "
                  "memory.",
       .equal = true},
      number_into(options.memory_mb, 1, kMostMemory));
  table.choice<HealthDeviceKind>(
      {.names = "--device",
       .help = "auto: the GPU of LOCAL_RANK if it exists, else the CPU",
       .details = "LOCAL_RANK counts modulo the number of GPUs. `gpu` is an error without one.",
       .equal = true},
      options.device,
      {{"auto", HealthDeviceKind::kAuto}, {"cpu", HealthDeviceKind::kCpu}, {"gpu", HealthDeviceKind::kGpu}});
  table.value({.names = "--threads",
               .value = "N",
               .default_text = "its part of the cores",
               .help = "threads of a rank on a CPU"},
              number_into(options.threads, 1, 1'024));
  table.value({.names = "--inject-fault",
               .value = "RANK:TEST",
               .help = "fault injection: this rank's test finds a wrong value",
               .details = "TEST is `gemm`, `memory` or `sum`."},
              parsed_into(options.inject, parse_fault, ": give RANK:gemm, RANK:memory or RANK:sum"));
}

void declare_options(OptionTable& table, HealthOptions& options) {
  declare_tests(table, options);
  table.group("Communication");
  table.choice<CommKind>({.names = "--comm", .help = "auto: shared memory inside a node, TCP between nodes"},
                         options.comm,
                         {{"auto", CommKind::kAuto}, {"tcp", CommKind::kTcp}, {"shm", CommKind::kShm}});
  table.value(
      {.names = "--comm-timeout", .value = "TIME", .help = "give up when a peer moves no byte for this long"},
      time_into(options.comm_timeout, kLeastTime));
  table.group("Report");
  table.value({.names = "--json",
               .value = "FILE",
               .help = "file for the result, written by rank 0",
               .details = "[Records](acceptance.md#records) describes it.",
               .completion = Completion::kFile,
               .equal = true},
              text_into(options.json));
  declare_help(table);
}

}  // namespace

std::vector<OptionGroup> health_option_groups() {
  return option_groups<HealthOptions>(declare_options);
}

ParsedCommand<HealthOptions> parse_health_options(int argc, const char* const* argv) {
  return parse_command<HealthOptions>("train health", kHealthUsage, declare_options, nullptr, argc, argv);
}

EqualOptions equal_options(HealthOptions options) {
  OptionTable table("");
  declare_options(table, options);
  return equal_options(table);
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSmall = 8, kLarge = std::size_t{1} << 20;
constexpr int kSmallTimes = 50, kLargeTimes = 8;
constexpr std::size_t kSumBytes = std::size_t{16} << 20;
/// Part of the ranks' time limit that a pair may use: the other ranks must not time out when a pair fails.
constexpr int kPartOfTimeout = 4;

std::byte byte_of(int sender, int time, std::size_t index) {
  return static_cast<std::byte>(
      mix_bits((static_cast<std::uint64_t>(sender) << 8) + static_cast<unsigned>(time)) >> 8 * (index % 8));
}

/// Exchanges `size` bytes `times` times; returns the microseconds of the median exchange.
Result<double> exchange(Communicator& two, std::pair<int, int> ranks, std::size_t size, int times,
                        std::uint64_t& wrong) {
  const int mine = two.rank() == 0 ? ranks.first : ranks.second;
  const int other = two.rank() == 0 ? ranks.second : ranks.first;
  std::vector<std::byte> halves(2 * size);  // rank 0's message, then rank 1's
  const std::span<std::byte> sent = std::span(halves).subspan(two.rank() == 0 ? 0 : size, size);
  const std::span<std::byte> received = std::span(halves).subspan(two.rank() == 0 ? size : 0, size);
  std::vector<double> each;
  for (int time = 0; time < times; ++time) {
    for (std::size_t i = 0; i < size; ++i) {
      sent[i] = byte_of(mine, time, i);
      received[i] = std::byte{0};
    }
    const auto begin = Clock::now();
    DDP_TRY(two.all_gather_parts(halves));
    each.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    for (std::size_t i = 0; i < size; ++i)
      wrong += received[i] != byte_of(other, time, i);
  }
  return median_of(std::move(each));
}

/// This rank's pair of one round, as numbers for all_gather().
struct PairMeasurement {
  std::uint64_t failed = 0, wrong = 0, nanoseconds = 0, kilobytes_per_second = 0;
};

Result<> meet_pair(const WorkerEnvironment& environment, const WorldOptions& options, CommWorld& world,
                   std::pair<int, int> pair, PairMeasurement& measured) {
  auto two = DDP_TRY(
      join_pair(environment, options, *world.directory, pair, world.same_node(pair.first, pair.second)));
  const auto latency = DDP_TRY(exchange(*two, pair, kSmall, kSmallTimes, measured.wrong));
  const auto time = DDP_TRY(exchange(*two, pair, kLarge, kLargeTimes, measured.wrong));
  measured.nanoseconds = static_cast<std::uint64_t>(latency * 1e3);
  measured.kilobytes_per_second = static_cast<std::uint64_t>(static_cast<double>(kLarge) / time * 1e3);
  return two->barrier();
}

/// Tests every two ranks, in rounds of disjoint pairs. Messages are compared byte by byte and timed. A pair
/// that fails is a result; an error ends the work of all ranks. All ranks call it and get the same result.
Result<std::vector<HealthPair>> test_pairs(const WorkerEnvironment& environment, const WorldOptions& options,
                                           CommWorld& world) {
  std::vector<HealthPair> pairs;
  WorldOptions shorter = options;
  shorter.start_timeout = shorter.step_timeout = options.step_timeout / kPartOfTimeout;
  const int rank = world.communicator->rank();
  for (const auto& round : pair_rounds(world.communicator->world_size())) {
    PairMeasurement measured;
    for (const auto& pair : round) {
      if (pair.first != rank && pair.second != rank) continue;
      measured.failed = meet_pair(environment, shorter, world, pair, measured) ? 0 : 1;
    }
    const std::uint64_t mine[] = {measured.failed, measured.wrong, measured.nanoseconds,
                                  measured.kilobytes_per_second};
    // The exchange is also a barrier, so that rounds do not overlap.
    const auto all = DDP_TRY(world.communicator->all_gather(mine));
    for (const auto& pair : round) {
      const std::uint64_t* first = all.data() + 4 * static_cast<std::size_t>(pair.first);
      const std::uint64_t* second = all.data() + 4 * static_cast<std::size_t>(pair.second);
      HealthPair& met = pairs.emplace_back();
      met.failed = first[0] + second[0] != 0;
      met.wrong = first[1] + second[1];
      met.result = {pair.first, pair.second, world.same_node(pair.first, pair.second),
                    static_cast<double>(first[2]) / 1e3, static_cast<double>(first[3]) / 1e6};
    }
  }
  std::sort(pairs.begin(), pairs.end(), [](const HealthPair& a, const HealthPair& b) {
    return std::pair(a.result.first, a.result.second) < std::pair(b.result.first, b.result.second);
  });
  return pairs;
}

/// Sums 16 MiB over all ranks, `times` times. Returns the number of wrong elements on this rank. `inject`:
/// one element is made wrong on this rank.
Result<std::uint64_t> test_sum(Communicator& world, int times, bool inject) {
  // Sums of these whole numbers over any number of ranks are exact in float.
  const auto value = [](int rank, std::size_t index) {
    return (rank % 64) + 1 + static_cast<int>(index % 7);
  };
  double ranks_alone = 0;
  for (int rank = 0; rank < world.world_size(); ++rank)
    ranks_alone += value(rank, 0);
  AlignedBuffer<float> numbers(kSumBytes / sizeof(float));
  std::uint64_t wrong = 0;
  for (int time = 0; time < times; ++time) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers.data()[i] = static_cast<float>(value(world.rank(), i));
    DDP_TRY(world.all_reduce_sum(numbers.span()));
    if (inject && time == 0) numbers.data()[numbers.size() / 3] += 1;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double right = ranks_alone + static_cast<double>(i % 7) * world.world_size();
      wrong += static_cast<double>(numbers.data()[i]) != right;
    }
  }
  return wrong;
}

using OrderedJson = nlohmann::ordered_json;

std::string whose(const HealthReport& report, int rank) {
  const HealthFigures& figures = report.ranks[static_cast<std::size_t>(rank)];
  return "rank " + std::to_string(rank) + " on " + figures.host + ", " + figures.device;
}

OrderedJson rank_json(const HealthFigures& f, std::size_t rank) {
  OrderedJson json{{"rank", rank},
                   {"host", f.host},
                   {"device", f.device},
                   {"trouble", f.trouble},
                   {"threads", f.threads},
                   {"products", f.products},
                   {"wrong_products", f.wrong_products},
                   {"other_products", f.other_products},
                   {"gflops", rounded(f.gflops, 3)},
                   {"memory_bytes", f.memory},
                   {"wrong_words", f.wrong_words},
                   {"wrong_sums", f.wrong_sums},
                   {"throttled", f.throttled}};
  if (f.gpu) {
    json.update({{"products_by", f.products_by},
                 {"ecc_corrected", f.ecc_corrected},
                 {"ecc_uncorrected", f.ecc_uncorrected},
                 {"throttle_reasons", f.throttle_reasons},
                 {"temperature", f.temperature},
                 {"clock_mhz", f.clock},
                 {"most_clock_mhz", f.most_clock},
                 {"xids", f.xids}});
  }
  return json;
}

OrderedJson pair_json(const HealthPair& pair) {
  return {{"ranks", {pair.result.first, pair.result.second}},
          {"same_node", pair.result.same_node},
          {"failed", pair.failed},
          {"wrong", pair.wrong},
          {"latency_us", rounded(pair.result.latency_us, 3)},
          {"bandwidth_gbps", rounded(pair.result.bandwidth, 4)}};
}

OrderedJson finding_json(const HealthReport& report, const HealthDiagnostic& diagnostic) {
  const HealthFigures& figures = report.ranks[static_cast<std::size_t>(diagnostic.rank)];
  return {{"level", diagnostic.error ? "error" : "warning"},
          {"rank", diagnostic.rank},
          {"host", figures.host},
          {"device", figures.device},
          {"item", diagnostic.item},
          {"text", diagnostic.text}};
}

}  // namespace

std::string health_text(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  std::string text = "# train " + std::string(version()) + " health, " + counted(report.ranks.size(), "rank");
  if (report.nodes > 0) text += " on " + counted(report.nodes, "node");
  text += ", " + report.backend + "\n#\n#  rank  products  GFLOP/s  memory (MiB)  result    host, device\n";
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const HealthFigures& f = report.ranks[i];
    text += format_text("%7zu %9" PRIu64 " %8.1f %13" PRIu64 "  %-8s  %s, %s", i, f.products, f.gflops,
                        f.memory >> 20, has_failed(diagnostics, static_cast<int>(i)) ? "FAILED" : "ok",
                        f.host.c_str(), f.device.c_str());
    if (f.gpu && f.most_clock > 0) {
      text += format_text(", %" PRIu64 " of %" PRIu64 " MHz, %" PRIu64 " degrees", f.clock, f.most_clock,
                          f.temperature);
    }
    if (!f.products_by.empty()) text += ", products by " + f.products_by;
    text += "\n";
  }
  for (const HealthDiagnostic& diagnostic : diagnostics) {
    if (!diagnostic.error)
      text += "# warning: " + whose(report, diagnostic.rank) + ": " + diagnostic.text + "\n";
  }
  return text;
}

std::vector<std::string> failure_lines(const HealthReport& report,
                                       const std::vector<HealthDiagnostic>& diagnostics) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < static_cast<int>(report.ranks.size()); ++rank) {
    std::string text;
    for (const HealthDiagnostic& diagnostic : diagnostics) {
      if (diagnostic.error && diagnostic.rank == rank) text += (text.empty() ? "" : "; ") + diagnostic.text;
    }
    if (!text.empty()) lines.push_back(whose(report, rank) + ": " + text);
  }
  return lines;
}

std::string health_json(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  OrderedJson ranks = OrderedJson::array(), pairs = OrderedJson::array(), faults = OrderedJson::array();
  for (std::size_t i = 0; i < report.ranks.size(); ++i)
    ranks.push_back(rank_json(report.ranks[i], i));
  for (const HealthPair& pair : report.pairs)
    pairs.push_back(pair_json(pair));
  for (const HealthDiagnostic& diagnostic : diagnostics)
    faults.push_back(finding_json(report, diagnostic));
  OrderedJson record = begin_record("health", 0, static_cast<int>(report.ranks.size()));
  record.update({{"version", version()},
                 {"nodes", report.nodes},
                 {"backend", report.backend},
                 {"ranks", ranks},
                 {"pairs", pairs},
                 {"findings", faults},
                 {"passed", failure_lines(report, diagnostics).empty()}});
  return record_line(record);
}

namespace {

constexpr int kHealthFailed = 1;
constexpr int kSums = 3;

int end_with(const std::string& text) {
  std::fprintf(stderr, "train: %s\n", text.c_str());
  return kHealthFailed;
}

bool uses_gpu(const HealthOptions& options) {
  return options.device == HealthDeviceKind::kGpu ||
         (options.device == HealthDeviceKind::kAuto && can_use_gpu());
}

/// Returns an error that is visible before anything starts; empty: none.
std::string contradiction(const HealthOptions& options, const WorkerEnvironment& environment,
                          const WorldOptions& world) {
  if (options.inject && options.inject->rank >= environment.world_size) {
    return "--inject-fault names rank " + std::to_string(options.inject->rank) + " of " +
           std::to_string(environment.world_size);
  }
  if (options.device == HealthDeviceKind::kGpu) {
    if (const auto can = can_use_gpu(); !can) return "--device gpu: " + can.error().text;
  }
  if (const auto possible = can_join(environment, world); !possible) return possible.error().text;
  if (uses_gpu(options) || options.memory_mb == 0) return "";
  const std::string lacks = lacking_memory(options.memory_mb << 20, environment.local_world_size);
  return lacks.empty() ? "" : "--memory " + std::to_string(options.memory_mb) + ": " + lacks;
}

bool injected(const HealthOptions& options, const WorkerEnvironment& environment, HealthFault fault) {
  return options.inject && options.inject->rank == environment.rank && options.inject->fault == fault;
}

HealthTask task_of(const HealthOptions& options, const WorkerEnvironment& environment, std::size_t share) {
  HealthTask task;
  task.share = share;
  task.time = options.time;
  task.memory = options.memory_mb << 20;
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
  const auto ranks = static_cast<unsigned>(std::max(environment.local_world_size, 1));
  task.threads = options.threads != 0 ? options.threads : static_cast<int>(std::max(cores / ranks, 1u));
  task.inject_gemm = injected(options, environment, HealthFault::kGemm);
  task.inject_memory = injected(options, environment, HealthFault::kMemory);
  return task;
}

/// This rank's device with its figures; the device is null if it could not be opened.
struct OwnDevice {
  std::unique_ptr<HealthDevice> device;
  std::size_t testable = 0;  ///< testable_memory()
  HealthFigures figures;
};

OwnDevice open_own_device(const HealthOptions& options, const WorkerEnvironment& environment) {
  OwnDevice own;
  own.figures.host = host_name();
  if (!uses_gpu(options)) {
    own.device = open_health_cpu();
    return own;
  }
  auto gpu = open_health_gpu(environment.local_rank);
  if (gpu) {
    own.device = std::move(*gpu);
  } else {
    own.figures.device = "GPU";
    own.figures.trouble = gpu.error().text;
  }
  return own;
}

/// A device whose free memory is unknown is not tested.
void ask_for_memory(OwnDevice& own) {
  if (!own.device) return;
  const auto bytes = own.device->testable_memory();
  if (bytes) {
    own.testable = *bytes;
  } else {
    own.figures.device = own.device->name();
    own.figures.trouble = bytes.error().text;
    own.device.reset();
  }
}

/// Each of several ranks on one GPU would otherwise take all free memory.
Result<std::size_t> agree_on_memory(Communicator& all, const OwnDevice& own) {
  const std::uint64_t mine[] = {own.device ? own.device->identity() : 0, own.testable};
  const auto sizes = DDP_TRY(all.all_gather(mine));
  return memory_share(sizes, all.rank());
}

Result<> gather_figures(Communicator& all, const HealthFigures& mine, HealthReport& report) {
  const auto words = DDP_TRY(all.all_gather(pack_figures(mine)));
  report.ranks.clear();
  for (int rank = 0; rank < all.world_size(); ++rank)
    report.ranks.push_back(unpack_figures(words.data() + kHealthFields * static_cast<std::size_t>(rank)));
  return {};
}

/// Tests the devices of all ranks, each by itself, then the network between them. After an error `report` has
/// the results up to that point.
Result<> test_all(const HealthOptions& options, const WorkerEnvironment& environment,
                  const WorldOptions& world_options, CommWorld& world, HealthReport& report) {
  Communicator& all = *world.communicator;
  report.nodes = world.node_count;
  report.backend = world.backend;
  OwnDevice own;
  const auto open = [&]() -> Result<> {
    own = open_own_device(options, environment);
    return {};
  };
  // Opening takes memory, too, so ranks ask after all devices are open.
  const auto ask = [&]() -> Result<> {
    ask_for_memory(own);
    return {};
  };
  // Devices need different times. The ranks meet regularly so that no rank takes another's silence for its
  // death.
  const auto sign = options.comm_timeout / 4;
  DDP_TRY(share_outcome(all, open, sign));
  DDP_TRY(share_outcome(all, ask, sign));
  const auto share = DDP_TRY(agree_on_memory(all, own));
  const auto test = [&]() -> Result<> {
    if (own.device) test_device(*own.device, task_of(options, environment, share), own.figures);
    own.device.reset();
    return {};
  };
  DDP_TRY(share_outcome(all, test, sign));
  HealthFigures& mine = own.figures;
  DDP_TRY(gather_figures(all, mine, report));
  if (all.world_size() > 1) report.pairs = DDP_TRY(test_pairs(environment, world_options, world));
  mine.wrong_sums = DDP_TRY(test_sum(all, kSums, injected(options, environment, HealthFault::kSum)));
  return gather_figures(all, mine, report);
}

void print_failures(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  for (const std::string& line : failure_lines(report, diagnostics))
    std::fprintf(stderr, "train: %s\n", line.c_str());
}

Result<> report_health(const HealthOptions& options, const HealthReport& report,
                       const std::vector<HealthDiagnostic>& diagnostics) {
  print_out("%s", health_text(report, diagnostics).c_str());
  print_out("# %s\n", failure_lines(report, diagnostics).empty() ? "all tests passed" : "FAILED");
  print_failures(report, diagnostics);
  return options.json.empty() ? Result<>() : write_report(options.json, health_json(report, diagnostics));
}

}  // namespace

int run_health(int argc, const char* const* argv) {
  const auto parsed = parse_health_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const HealthOptions& options = *parsed.options;
  const auto environment =
      read_worker_environment([](const char* name) -> const char* { return std::getenv(name); });
  if (!environment) return end_with(environment.error().text);
  WorldOptions world_options;
  world_options.comm = options.comm;
  world_options.step_timeout = options.comm_timeout;
  const std::string problem = contradiction(options, *environment, world_options);
  if (!problem.empty()) return refuse("train health", {problem});
  auto world = join_world(*environment, world_options);
  if (!world) return end_with(world.error().text);
  if (auto equal = check_equal(*world->communicator, equal_options(options)); !equal)
    return end_with(equal.error().text);
  const bool speaks = environment->rank == 0;
  if (!options.json.empty()) {
    const auto writable = speaks ? check_output_path("--json", options.json) : Result<>();
    if (auto done = share_outcome(*world->communicator, writable); !done) return end_with(done.error().text);
  }

  HealthReport report;
  const auto tested = test_all(options, *environment, world_options, *world, report);
  const auto diagnostics = diagnose_health(report);
  if (!tested) {
    if (speaks) print_failures(report, diagnostics);
    return end_with(tested.error().text + " of the health check");
  }
  Result<> written;
  if (speaks) written = report_health(options, report, diagnostics);
  // No rank exits before rank 0 has reported everything; otherwise its exit would be taken for the cause.
  if (auto done = share_outcome(*world->communicator, written); !done) return end_with(done.error().text);
  return has_failed(diagnostics, environment->rank) ? kHealthFailed : 0;
}

}  // namespace ddp::train
