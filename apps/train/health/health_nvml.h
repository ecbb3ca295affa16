#pragma once

#include <cstdint>
#include <memory>

#include "apps/train/health/checks/health_diagnosis.h"

namespace ddp::train {

/// What the driver's library (NVML, loaded at run time) says of one GPU while it is tested. Where there is
/// none, or it lacks a function, nothing is known and nothing is wrong.
class NvmlMonitor {
 public:
  NvmlMonitor();
  ~NvmlMonitor();
  NvmlMonitor(NvmlMonitor&&) noexcept;
  NvmlMonitor& operator=(NvmlMonitor&&) noexcept;

  /// The GPU at this place of the PCI bus, whatever number CUDA gives it.
  static NvmlMonitor open(int domain, int bus, int device);
  void begin();
  /// Clocks, temperature and why clocks are held back: to be called while the GPU works.
  void sample();
  void end(HealthFigures& figures);

 private:
  struct State;
  std::unique_ptr<State> state_;  ///< null: nothing is known
};

}  // namespace ddp::train
