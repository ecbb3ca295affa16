#pragma once

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// The weights that kernels read, from parameters that something else than Update wrote; a thread for each.
template <class T, class S>
struct RoundWeights {
  struct Args {
    int count;
    const T* parameters;
    S* weights;
  };
  static constexpr int kThreads = 128;
  using Shared = Nothing;
  using Local = Nothing;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.count, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, Place at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (i < args.count) args.weights[i] = static_cast<S>(args.parameters[i]);
  }
};

}  // namespace ddp::train::kernels::device
