#pragma once

#include <cstdint>
#include <memory>

#include "apps/train/health/checks/health_diagnosis.h"

namespace ddp::train {

/// Reads the state of one GPU during its test from the driver's library (NVML, loaded at run time). If the
/// library or a function is missing, the values are unknown, which is no error.
class NvmlMonitor {
 public:
  NvmlMonitor();
  ~NvmlMonitor();
  NvmlMonitor(NvmlMonitor&&) noexcept;
  NvmlMonitor& operator=(NvmlMonitor&&) noexcept;

  /// Opens the GPU at this place of the PCI bus; CUDA may number GPUs differently.
  static NvmlMonitor open(int domain, int bus, int device);
  void begin();
  /// Samples clocks, temperature and throttle reasons; to be called while the GPU works.
  void sample();
  void end(HealthFigures& figures);

 private:
  struct State;
  std::unique_ptr<State> state_;  ///< null: all values are unknown
};

}  // namespace ddp::train
