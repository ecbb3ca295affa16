#pragma once

#include <cstdint>
#include <memory>

#include "apps/train/health/checks/health_judge.h"

namespace ddp::train {

/// What the driver's library (NVML, loaded at run time) says of one GPU while it is tested. Where there is
/// none, or it lacks a function, nothing is known and nothing is wrong.
class NvmlWatch {
 public:
  NvmlWatch();
  ~NvmlWatch();
  NvmlWatch(NvmlWatch&&) noexcept;
  NvmlWatch& operator=(NvmlWatch&&) noexcept;

  /// The GPU at this place of the PCI bus, whatever number CUDA gives it.
  static NvmlWatch open(int domain, int bus, int device);
  void begin();
  /// Clocks, temperature and why clocks are held back: to be called while the GPU works.
  void look();
  void end(HealthFigures& figures);

 private:
  struct State;
  std::unique_ptr<State> state_;  ///< null: nothing is known
};

}  // namespace ddp::train
