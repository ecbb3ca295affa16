#include "apps/train/health/health.h"

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "apps/options/option_table.h"
#include "apps/train/bench/measurement.h"
#include "apps/train/checkpoint/model_file.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/health/checks/health_diagnosis.h"
#include "apps/train/health/equal_steps.h"
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
    "with known results, equal training steps, messages and all-reduces. Exit code 1 if a test fails.\n";

/// Parses "RANK:gemm", "RANK:memory", "RANK:gradient" or "RANK:sum".
std::optional<InjectedFault> parse_fault(std::string_view text) {
  const auto rank = parse_number<int>(take_field(text, ':'));
  constexpr std::pair<std::string_view, HealthFault> kFaults[] = {{"gemm", HealthFault::kGemm},
                                                                  {"memory", HealthFault::kMemory},
                                                                  {"gradient", HealthFault::kGradient},
                                                                  {"sum", HealthFault::kSum}};
  for (const auto& [word, fault] : kFaults) {
    if (rank && *rank >= 0 && word == text) return InjectedFault{*rank, fault};
  }
  return std::nullopt;
}

void declare_tests(OptionTable& table, HealthOptions& options) {
  table.group("Tests", "", "train health 1m --memory 4096");
  table.value({.names = "TIME",
               .help = "duration of the matrix products; the training steps take a quarter of it",
               .equal = true},
              time_into(options.time, kLeastTime));
  table.value({.names = "--minutes",
               .value = "N",
               .default_text = "one round",
               .help = "repeat the tests of the devices for N minutes",
               .equal = true},
              number_into(options.minutes, 0.01, 1e6));
  table.value(
      {.names = "--memory",
       .value = "MB",
       .default_text = "256; on a GPU 98 % of the free memory",
       .help = "MiB of memory that each rank tests",
       .details = "On a CPU more than the host has is refused, and the default is at most half of what is "
                  "left. Ranks that share a GPU divide its free memory.",
       .equal = true},
      number_into(options.memory_mb, 1, kMostMemory));
  table.choice<DeviceKind>(
      {.names = "--device",
       .help = "auto: the GPU of LOCAL_RANK if any rank sees one, else the CPU",
       .details =
           "A visible GPU that cannot be used is an error, and so is NCCL with several ranks; `--comm shm` "
           "and `tcp` do without NCCL.",
       .equal = true},
      options.device, device_words());
  table.value({.names = "--threads",
               .value = "N",
               .default_text = "its part of the cores",
               .help = "threads of a rank on a CPU"},
              number_into(options.threads, 1, 1'024));
  table.value(
      {.names = "--inject-fault",
       .value = "RANK:TEST",
       .help = "fault injection: this rank's test finds a wrong value",
       .details = "TEST is `gemm`, `memory`, `gradient` or `sum`."},
      parsed_into(options.inject, parse_fault, ": give RANK:gemm, RANK:memory, RANK:gradient or RANK:sum"));
}

void declare_options(OptionTable& table, HealthOptions& options) {
  declare_tests(table, options);
  table.group("Communication");
  table.choice<CommKind>(
      {.names = "--comm",
       .help = "auto: the sum over NCCL if GPUs are tested, and all else over shared memory "
               "inside a node and TCP between nodes; tcp, shm: no NCCL",
       .equal = true},
      options.comm, {{"auto", CommKind::kAuto}, {"tcp", CommKind::kTcp}, {"shm", CommKind::kShm}});
  table.value(
      {.names = "--comm-timeout", .value = "TIME", .help = "give up when a peer moves no byte for this long"},
      time_into(options.comm_timeout, kLeastTime));
  table.group("Report");
  declare_json(table, options.json);
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

constexpr std::size_t kSumBytes = std::size_t{16} << 20;
constexpr std::size_t kPairBytes = std::size_t{1} << 20;

BenchOptions pair_options(const HealthOptions& options) {
  BenchOptions pairs;
  pairs.operation = BenchOperation::kPairs;
  pairs.max_bytes = kPairBytes;
  pairs.iterations = pairs.check = 8;
  pairs.comm_timeout = options.comm_timeout;
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

/// Returns "rank 1 on gpu02, CPU: "; empty for the job.
std::string whose(const HealthReport& report, int rank) {
  if (rank == HealthDiagnostic::kJob) return "";
  const HealthFigures& figures = report.ranks[static_cast<std::size_t>(rank)];
  return "rank " + std::to_string(rank) + " on " + figures.host + ", " + figures.device + ": ";
}

OrderedJson rank_json(const HealthFigures& f, std::size_t rank) {
  OrderedJson json{{"rank", rank},
                   {"host", f.host},
                   {"device", f.device},
                   {"trouble", f.trouble},
                   {"left_out", f.left_out}};
  if (f.gpu) json["products_by"] = f.products_by;
  for (const HealthCount& count : kHealthCounts)
    if (*count.key != '\0' && (f.gpu || !count.of_gpu)) json[count.key] = f.*count.field;
  for (const HealthSpeed& speed : kHealthSpeeds)
    if (f.gpu || !speed.of_gpu) json[speed.key] = rounded(speed.factor * (f.*speed.field), 4);
  return json;
}

OrderedJson finding_json(const HealthReport& report, const HealthDiagnostic& diagnostic) {
  OrderedJson json{{"level", diagnostic.error ? "error" : "warning"},
                   {"item", diagnostic.item},
                   {"text", diagnostic.text}};
  if (diagnostic.rank == HealthDiagnostic::kJob) return json;
  const HealthFigures& figures = report.ranks[static_cast<std::size_t>(diagnostic.rank)];
  json.update({{"rank", diagnostic.rank}, {"host", figures.host}, {"device", figures.device}});
  return json;
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
  text += speed_table(report);
  for (const HealthDiagnostic& diagnostic : diagnostics) {
    if (!diagnostic.error) text += "# warning: " + whose(report, diagnostic.rank) + diagnostic.text + "\n";
  }
  return text;
}

std::vector<std::string> failure_lines(const HealthReport& report,
                                       const std::vector<HealthDiagnostic>& diagnostics) {
  std::vector<std::string> lines;
  for (int rank = HealthDiagnostic::kJob; rank < static_cast<int>(report.ranks.size()); ++rank) {
    std::string text;
    for (const HealthDiagnostic& diagnostic : diagnostics) {
      if (diagnostic.error && diagnostic.rank == rank) text += (text.empty() ? "" : "; ") + diagnostic.text;
    }
    if (!text.empty()) lines.push_back(whose(report, rank) + text);
  }
  return lines;
}

std::string health_json(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  OrderedJson ranks = OrderedJson::array(), faults = OrderedJson::array();
  for (std::size_t i = 0; i < report.ranks.size(); ++i)
    ranks.push_back(rank_json(report.ranks[i], i));
  for (const HealthDiagnostic& diagnostic : diagnostics)
    faults.push_back(finding_json(report, diagnostic));
  OrderedJson record = begin_record("health", 0, static_cast<int>(report.ranks.size()));
  record.update({{"version", version()},
                 {"nodes", report.nodes},
                 {"backend", report.backend},
                 {"ranks", ranks},
                 {"pairs", pairs_json(report.pairs, kPairBytes, true)},
                 {"groups", groups_json(report.groups, true)},
                 {"findings", faults},
                 {"tested", report.tested},
                 {"passed", failure_lines(report, diagnostics).empty()}});
  return record_line(record);
}

namespace {

constexpr int kSums = 3;

/// Returns an error that is visible before anything starts; empty: none.
std::string contradiction(const HealthOptions& options, const WorkerEnvironment& environment,
                          const WorldOptions& world) {
  if (options.inject && options.inject->rank >= environment.world_size) {
    return "--inject-fault names rank " + std::to_string(options.inject->rank) + " of " +
           std::to_string(environment.world_size);
  }
  if (options.device == DeviceKind::kGpu) {
    if (const auto can = can_use_gpu(); !can) return "--device gpu: " + can.error().text;
  }
  if (const auto possible = can_join(environment, world); !possible) return possible.error().text;
  const bool may_use_gpu = options.device != DeviceKind::kCpu && can_use_gpu();
  if (may_use_gpu || options.memory_mb == 0) return "";
  const std::string lacks = lacking_memory(options.memory_mb << 20, environment.local_world_size);
  return lacks.empty() ? "" : "--memory " + std::to_string(options.memory_mb) + ": " + lacks;
}

HealthTask task_of(const HealthOptions& options, const WorkerEnvironment& environment, std::size_t share) {
  HealthTask task;
  task.share = share;
  task.time = options.time;
  task.memory = options.memory_mb << 20;
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
  const auto ranks = static_cast<unsigned>(std::max(environment.local_world_size, 1));
  task.threads = options.threads != 0 ? options.threads : static_cast<int>(std::max(cores / ranks, 1u));
  if (options.inject && options.inject->rank == environment.rank) task.inject = options.inject->fault;
  return task;
}

/// This rank's device with its figures; the device is null if it could not be opened.
struct OwnDevice {
  std::unique_ptr<HealthDevice> device;
  std::size_t testable = 0;  ///< testable_memory()
  HealthFigures figures;
};

OwnDevice open_own_device(DeviceKind device, const WorkerEnvironment& environment) {
  OwnDevice own;
  own.figures.host = host_name();
  if (device != DeviceKind::kGpu) {
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

/// Each of several ranks on one GPU would otherwise take all free memory, and those of a host too much of it.
Result<std::size_t> agree_on_memory(Communicator& all, const OwnDevice& own, int ranks_of_host) {
  // Read before any rank has taken some.
  const std::size_t of_host =
      available_memory().value_or(0) / 2 / static_cast<std::size_t>(std::max(ranks_of_host, 1));
  const std::uint64_t mine[] = {own.device ? own.device->identity() : 0, own.testable};
  const auto sizes = DDP_TRY(all.all_gather(mine));
  return mine[0] == 0 ? of_host : memory_share(sizes, all.rank());
}

Result<> gather_figures(Communicator& all, const HealthFigures& mine, HealthReport& report) {
  const auto words = DDP_TRY(all.all_gather(pack_figures(mine)));
  report.ranks.clear();
  for (int rank = 0; rank < all.world_size(); ++rank)
    report.ranks.push_back(unpack_figures(words.data() + kHealthFields * static_cast<std::size_t>(rank)));
  return {};
}

/// Runs all tests of one device in order, and adds the results to `figures`. A test that could not run is the
/// figures' `trouble`.
void test_device(HealthDevice& device, const HealthTask& task, HealthFigures& figures) {
  HealthFigures round;
  round.device = device.name();
  device.begin(round);
  Result<> done = device.multiply(task, round);
  if (done) done = device.remember(task, round);
  if (!done) round.trouble = done.error().text;
  device.end(round);
  figures.add(round);
}

/// Makes equal training steps on all ranks and compares their gradients, for a quarter of the task's time. A
/// rank that cannot make them takes no part.
Result<> test_steps(const WorkerEnvironment& environment, DeviceKind kind, const HealthTask& task,
                    std::chrono::milliseconds sign, CommWorld& world, OwnDevice& own,
                    std::vector<double>& seconds) {
  Communicator& all = *world.communicator;
  std::unique_ptr<EqualSteps> work;
  const auto open = [&]() -> Result<> {
    if (!own.device) return {};
    DDP_TRY(own.device->make_current());
    work = DDP_TRY(EqualSteps::open(kind, environment.local_rank, own.device->step_width(), task.threads));
    return {};
  };
  bool inject = task.inject == HealthFault::kGradient;
  std::uint64_t hashes[1 + EqualSteps::kSteps + 1];  // the kind, the steps, whether rank 0 goes on
  const auto make = [&]() -> Result<> {
    DDP_TRY(own.device->make_current());
    for (std::size_t i = 0; i < EqualSteps::kSteps; ++i) {
      const auto step = DDP_TRY(work->make(i, std::exchange(inject, false)));
      hashes[1 + i] = step.hash;
      seconds.push_back(step.seconds);
    }
    hashes[0] = work->kind();
    return {};
  };
  // An error of this rank's device must not end the work of the others.
  const auto attempt = [&](const auto& part) -> Result<> {
    if (const Result<> done = part(); !done) {
      own.figures.trouble = done.error().text;
      work.reset();
    }
    return {};
  };
  DDP_TRY(share_outcome(
      all, [&] { return attempt(open); }, sign));
  const auto end = Clock::now() + task.time / 4;
  for (bool goes_on = true; goes_on;) {
    std::ranges::fill(hashes, 0);
    DDP_TRY(share_outcome(
        all, [&] { return work ? attempt(make) : Result<>(); }, sign));
    hashes[std::size(hashes) - 1] = Clock::now() < end;
    const auto words = DDP_TRY(all.all_gather(hashes));
    const auto mine = compare_steps(words, std::size(hashes), EqualSteps::kSteps,
                                    EqualSteps::kBatches)[static_cast<std::size_t>(all.rank())];
    own.figures.steps += hashes[0] != 0 ? EqualSteps::kSteps : 0;
    own.figures.other_steps += mine.other;
    own.figures.unclear_steps += mine.unclear;
    goes_on = words[std::size(hashes) - 1] != 0;
  }
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
    own = open_own_device(world.choice.device, environment);
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
  const auto share = DDP_TRY(agree_on_memory(all, own, environment.local_world_size));
  HealthTask task = task_of(options, environment, share);
  const auto test = [&]() -> Result<> {
    if (own.device) test_device(*own.device, task, own.figures);
    return {};
  };
  HealthFigures& mine = own.figures;
  std::vector<double> seconds;  // of this rank's training steps
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double, std::ratio<60>>(options.minutes));
  for (std::uint8_t goes_on = 1; goes_on != 0;) {
    DDP_TRY(share_outcome(all, test, sign));
    DDP_TRY(test_steps(environment, world.choice.device, task, sign, world, own, seconds));
    if (task.inject != HealthFault::kSum) task.inject.reset();  // only the first round has it
    goes_on = Clock::now() < end;
    DDP_TRY(all.broadcast(std::as_writable_bytes(std::span(&goes_on, 1)), 0));
  }
  own.device.reset();
  const TimeSummary times = summarize_times(seconds, std::accumulate(seconds.begin(), seconds.end(), 0.0));
  mine.step_p50 = times.p50;
  mine.step_p99 = times.p99;
  mine.step_lost = times.lost;
  DDP_TRY(gather_figures(all, mine, report));
  const bool over_nccl = world.choice.comm == CommKind::kNccl;
  std::unique_ptr<Communicator> gpus;
  if (over_nccl) gpus = DDP_TRY(join_gpus(environment, world_options, *world.directory));
  if (all.world_size() > 1)
    report.pairs = DDP_TRY(measure_pairs(pair_options(options), environment, world, gpus.get()));
  if (gpus != nullptr) report.groups = DDP_TRY(measure_groups(pair_options(options), environment, *gpus));
  const bool inject = task.inject == HealthFault::kSum;
  mine.wrong_sums = DDP_TRY(test_sum(gpus ? *gpus : all, kSums, inject));
  DDP_TRY(gather_figures(all, mine, report));
  report.tested =
      DDP_TRY(tested_line(environment, all, world.choice.device, over_nccl ? "nccl" : world.backend));
  const auto short_of = std::ranges::count_if(
      report.ranks, [](const HealthFigures& figures) { return !figures.left_out.empty(); });
  if (short_of > 0)
    report.tested += "; " + counted(static_cast<std::size_t>(short_of), "rank") +
                     " with less than all tests (see the warnings)";
  return {};
}

void print_failures(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  for (const std::string& line : failure_lines(report, diagnostics))
    fail(line);
}

Result<> report_health(const HealthOptions& options, const HealthReport& report,
                       const std::vector<HealthDiagnostic>& diagnostics) {
  print_out("%s", health_text(report, diagnostics).c_str());
  print_out("# %s\n", failure_lines(report, diagnostics).empty() ? "all tests passed" : "FAILED");
  print_out("# %s\n", report.tested.c_str());
  print_failures(report, diagnostics);
  return options.json.empty() ? Result<>() : write_report(options.json, health_json(report, diagnostics));
}

}  // namespace

int run_health(int argc, const char* const* argv) {
  const auto parsed = parse_health_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const HealthOptions& options = *parsed.options;
  const auto environment = read_worker_environment(::getenv);
  if (!environment) return fail(environment.error().text);
  WorldOptions world_options;
  world_options.comm = options.comm;
  world_options.step_timeout = options.comm_timeout;
  world_options.remark = "# ";
  const std::string problem = contradiction(options, *environment, world_options);
  if (!problem.empty()) return refuse("train health", {problem});
  auto world = join_world(*environment, world_options);
  if (!world) return fail(world.error().text);
  TrainOptions choice;
  static_cast<BackendOptions&>(choice) = options;
  const bool without_nccl = options.comm != CommKind::kAuto;
  if (without_nccl) {  // only the device is left to the choice, and ranks may share it
    choice.comm = CommKind::kNccl;
    choice.share_gpu = true;
  }
  auto chosen = choose_device(*environment, choice, world->directory.get());
  if (!chosen) return fail(chosen.error().text);
  world->choice = std::move(*chosen);
  if (without_nccl) world->choice.comm = options.comm;
  if (auto equal = check_equal(*world->communicator, equal_options(options)); !equal)
    return fail(equal.error().text);
  const bool speaks = environment->rank == 0;
  if (!options.json.empty()) {
    const auto writable = speaks ? check_output_path("--json", options.json) : Result<>();
    if (auto done = share_outcome(*world->communicator, writable); !done) return fail(done.error().text);
  }

  HealthReport report;
  const auto tested = test_all(options, *environment, world_options, *world, report);
  const auto diagnostics = diagnose_health(report);
  if (!tested) {
    if (speaks) print_failures(report, diagnostics);
    return fail(tested.error().text + " of the health check");
  }
  Result<> written;
  if (speaks) written = report_health(options, report, diagnostics);
  // No rank exits before rank 0 has reported everything; otherwise its exit would be taken for the cause.
  if (auto done = share_outcome(*world->communicator, written); !done) return fail(done.error().text);
  // Rank 0 stands for the job.
  const bool has_fault = has_failed(diagnostics, environment->rank) ||
                         (speaks && has_failed(diagnostics, HealthDiagnostic::kJob));
  return has_fault ? kFailed : 0;
}

}  // namespace ddp::train
