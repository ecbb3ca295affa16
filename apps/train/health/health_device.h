#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "apps/train/health/checks/health_diagnosis.h"
#include "base/result.h"

namespace ddp::train {

/// What is to be tested, and what is to go wrong for a drill.
struct HealthTask {
  std::chrono::milliseconds time{10'000};
  std::size_t memory = 0;  ///< bytes to be tested; 0: a CPU's usual ones, of a GPU `share`
  std::size_t share = 0;   ///< bytes of its GPU that this rank may take (memory_share)
  int threads = 1;
  bool inject_gemm = false;
  bool inject_memory = false;
};

/// Multiplies and remembers on one device, and writes what it saw into figures. Blocking, one thread.
class HealthDevice {
 public:
  virtual ~HealthDevice() = default;
  virtual std::string name() const = 0;
  /// Equal on ranks that have the same memory to divide, on whatever thread; 0: nobody shares it.
  virtual std::uint64_t identity() const { return 0; }
  /// Bytes that could be tested now if nobody else took any; 0 where identity() is. It may take as long as
  /// the driver does.
  virtual Result<std::size_t> testable_memory() { return std::size_t{0}; }
  /// What is to be known before, and after the tests (clocks, counters of errors).
  virtual void begin(HealthFigures&) {}
  virtual void end(HealthFigures&) {}
  /// Errors are about the device or its memory as a whole; wrong values are none, they stand in the figures.
  virtual Result<> multiply(const HealthTask& task, HealthFigures& figures) = 0;
  virtual Result<> remember(const HealthTask& task, HealthFigures& figures) = 0;
};

std::unique_ptr<HealthDevice> open_health_cpu();
/// Whether this build and this machine have one; kUsage with the reason.
Result<> can_test_gpu();
/// GPU `local_rank` modulo their number.
Result<std::unique_ptr<HealthDevice>> open_health_gpu(int local_rank);

/// How much of its device's memory this rank may take, so that no other one lacks it: the ranks that share a
/// device have equal parts. `sizes` has for each rank its identity() and its testable_memory(), read when
/// all had opened their devices and none had begun; 0 where a rank does not know.
std::size_t memory_share(std::span<const std::uint64_t> sizes, int rank);

/// All tests of one device in their order; what could not be made is the figures' trouble.
void test_device(HealthDevice& device, const HealthTask& task, HealthFigures& figures);

}  // namespace ddp::train
