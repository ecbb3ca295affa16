#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "apps/train/health_judge.h"
#include "base/result.h"

namespace ddp::train {

/// What is to be tested, and what is to go wrong for a drill.
struct HealthTask {
  std::chrono::milliseconds time{10'000};
  std::size_t memory = 0;  ///< bytes; 0: as the device has it
  int threads = 1;
  bool plant_gemm = false;
  bool plant_memory = false;
};

/// Multiplies and remembers on one device, and writes what it saw into figures. Blocking, one thread.
class HealthDevice {
 public:
  virtual ~HealthDevice() = default;
  virtual std::string name() const = 0;
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

/// All tests of one device in their order; what could not be made is the figures' trouble.
void test_device(HealthDevice& device, const HealthTask& task, HealthFigures& figures);

}  // namespace ddp::train
