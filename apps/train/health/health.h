#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/options/option_table.h"
#include "apps/train/collectives/communicator.h"
#include "apps/train/health/checks/health_diagnosis.h"
#include "apps/train/options/options.h"
#include "base/result.h"

namespace ddp::train {

enum class HealthFault : std::uint8_t { kGemm, kMemory, kSum, kGradient };

/// Settings of the tests.
struct HealthTask {
  std::chrono::milliseconds time{10'000};
  std::size_t memory = 0;  ///< bytes to test; 0: `share`, of a CPU at most its default
  std::size_t share = 0;   ///< bytes that this rank may take of its GPU (memory_share) or host; 0: unknown
  int threads = 1;
  std::optional<HealthFault> inject{};  ///< fault injection: the test that gives a wrong result
};

/// Tests matrix products and memory on one device and writes the results into figures. Calls block and come
/// from one thread.
class HealthDevice {
 public:
  virtual ~HealthDevice() = default;
  virtual std::string name() const = 0;
  /// Equal on ranks that divide the same memory, on any thread; 0: no other rank shares the memory.
  virtual std::uint64_t identity() const { return 0; }
  /// Returns the bytes that could be tested if no other rank took any; 0 if identity() is 0. The driver may
  /// take long.
  virtual Result<std::size_t> testable_memory() { return std::size_t{0}; }
  /// Makes it the current device of the calling thread, for EqualSteps.
  virtual Result<> make_current() { return {}; }
  /// The width of EqualSteps that gives the device work.
  virtual int step_width() const { return 512; }
  /// Called before and after the tests, to read clocks and error counters.
  virtual void begin(HealthFigures&) {}
  virtual void end(HealthFigures&) {}
  /// Errors are about the device or its memory as a whole. Wrong values are no errors: the figures count
  /// them.
  virtual Result<> multiply(const HealthTask& task, HealthFigures& figures) = 0;
  virtual Result<> remember(const HealthTask& task, HealthFigures& figures) = 0;
};

std::unique_ptr<HealthDevice> open_health_cpu();
/// Opens GPU number `local_rank` modulo the number of GPUs.
Result<std::unique_ptr<HealthDevice>> open_health_gpu(int local_rank);

/// Returns how much of its device's memory this rank may take: ranks that share a device have equal parts.
/// `sizes` has for each rank its identity() and its testable_memory(). They are read after all ranks have
/// opened their devices and before any has begun; 0: the rank does not know.
std::size_t memory_share(std::span<const std::uint64_t> sizes, int rank);

/// Fault injection: this rank's device gives a wrong result in the named test.
struct InjectedFault {
  int rank = 0;
  HealthFault fault = HealthFault::kGemm;
};

struct HealthOptions : BackendOptions {
  std::chrono::milliseconds time{10'000};  ///< duration of the matrix products of a round
  double minutes = 0;                      ///< repeat the tests of devices for so long; 0: one round
  std::size_t memory_mb = 0;               ///< 0: 256, on a GPU most of the free memory
  int threads = 0;                         ///< per rank on a CPU; 0: its part of the cores
  std::optional<InjectedFault> inject;
  std::string json;  ///< file that rank 0 writes; empty: none
};

/// `argv[0]` is "health".
ParsedCommand<HealthOptions> parse_health_options(int argc, const char* const* argv);
/// Returns the options of --help, for the documents.
std::vector<OptionGroup> health_option_groups();

/// Returns the options that must be equal on all ranks.
EqualOptions equal_options(HealthOptions options);

/// Runs `train health …`; returns the exit code (docs/users/acceptance.md).
int run_health(int argc, const char* const* argv);

}  // namespace ddp::train
