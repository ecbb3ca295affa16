#include "apps/train/health/health_run.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "apps/train/checkpoint/model_file.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/health/checks/health_diagnosis.h"
#include "apps/train/health/health_device.h"
#include "apps/train/health/health_network.h"
#include "apps/train/health/health_options.h"
#include "apps/train/training/run_output.h"
#include "apps/train/world/host_memory.h"
#include "apps/train/world/world.h"
#include "base/host_name.h"

namespace ddp::train {

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
  const auto sizes = all.all_gather(mine);
  if (!sizes) return sizes.error();
  return memory_share(*sizes, all.rank());
}

Result<> gather_figures(Communicator& all, const HealthFigures& mine, HealthReport& report) {
  const auto words = all.all_gather(pack_figures(mine));
  if (!words) return words.error();
  report.ranks.clear();
  for (int rank = 0; rank < all.world_size(); ++rank)
    report.ranks.push_back(unpack_figures(words->data() + kHealthFields * static_cast<std::size_t>(rank)));
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
  if (auto met = share_outcome(all, open, sign); !met) return met;
  if (auto met = share_outcome(all, ask, sign); !met) return met;
  const auto share = agree_on_memory(all, own);
  if (!share) return share.error();
  const auto test = [&]() -> Result<> {
    if (own.device) test_device(*own.device, task_of(options, environment, *share), own.figures);
    own.device.reset();
    return {};
  };
  if (auto met = share_outcome(all, test, sign); !met) return met;
  HealthFigures& mine = own.figures;
  if (auto gathered = gather_figures(all, mine, report); !gathered) return gathered;
  if (all.world_size() > 1) {
    auto pairs = test_pairs(environment, world_options, world);
    if (!pairs) return pairs.error();
    report.pairs = std::move(*pairs);
  }
  const auto wrong = test_sum(all, kSums, injected(options, environment, HealthFault::kSum));
  if (!wrong) return wrong.error();
  mine.wrong_sums = *wrong;
  return gather_figures(all, mine, report);
}

Result<> write_health(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return system_error(errno, "open " + path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) return system_error(errno, "write " + path);
  return {};
}

void print_failures(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  for (const std::string& line : failure_lines(report, diagnostics))
    std::fprintf(stderr, "train: %s\n", line.c_str());
}

Result<> write_report(const HealthOptions& options, const HealthReport& report,
                      const std::vector<HealthDiagnostic>& diagnostics) {
  print_out("%s", health_text(report, diagnostics).c_str());
  print_out("# %s\n", failure_lines(report, diagnostics).empty() ? "all tests passed" : "FAILED");
  print_failures(report, diagnostics);
  return options.json.empty() ? Result<>() : write_health(options.json, health_json(report, diagnostics));
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
  if (speaks) written = write_report(options, report, diagnostics);
  // No rank exits before rank 0 has reported everything; otherwise its exit would be taken for the cause.
  if (auto done = share_outcome(*world->communicator, written); !done) return end_with(done.error().text);
  return has_failed(diagnostics, environment->rank) ? kHealthFailed : 0;
}

}  // namespace ddp::train
