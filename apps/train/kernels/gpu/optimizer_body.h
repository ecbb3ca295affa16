#pragma once

#include <cmath>
#include <type_traits>

#include "apps/train/kernels/gpu/body.h"
#include "apps/train/kernels/gpu/update_body.h"

namespace ddp::train::kernels::device {

/// SGD or AdamW over the flat vectors, line by line as in weight_update.cc. The step's running statistics
/// then replace the old ones. One thread per number. A skipped step changes nothing. The build uses no fused
/// multiply-add, so that SGD gives the bits of a CPU. S: storage type of the weights that the next step's
/// kernels read. If S is not T, these weights are stored beside the parameters.
template <class T, class S = T>
struct Update {
  struct Args {
    int count;
    T* parameters;
    const T* gradients;
    T* first;   ///< SGD's velocity, AdamW's mean
    T* second;  ///< AdamW's mean square
    int running_count;
    T* running;
    const T* next_running;
    UpdateSettings settings;
    const StepState* state;
    S* weights;  ///< as parameters; not read or written when S is T
  };
  static constexpr int kThreads = 128;
  using Shared = NoMemory;
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.count + args.running_count, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }

  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (args.state->skip != 0) return;
    if (i < args.count) {
      const double factor = args.state->factor;
      const T gradient = factor < 1 ? args.gradients[i] * static_cast<T>(factor) : args.gradients[i];
      if (args.settings.adamw) {
        adamw(i, gradient, args);
      } else {
        sgd(i, gradient, args);
      }
      if constexpr (!std::is_same_v<S, T>) args.weights[i] = static_cast<S>(args.parameters[i]);
    } else if (i < args.count + args.running_count) {
      args.running[i - args.count] = args.next_running[i - args.count];
    }
  }

 private:
  static DDP_HD void sgd(int i, T gradient, const Args& args) {
    const T momentum = static_cast<T>(args.settings.momentum), decay = static_cast<T>(args.settings.decay);
    const T velocity = momentum * args.first[i] + (gradient + decay * args.parameters[i]);
    args.first[i] = velocity;
    args.parameters[i] -= static_cast<T>(args.state->lr) * velocity;
  }

  static DDP_HD void adamw(int i, T gradient, const Args& args) {
    const UpdateSettings& settings = args.settings;
    const T root_correction = static_cast<T>(args.state->root_correction);
    const T rate = static_cast<T>(args.state->rate), keep = static_cast<T>(args.state->keep);
    const T mean =
        static_cast<T>(settings.beta1) * args.first[i] + static_cast<T>(1 - settings.beta1) * gradient;
    const T square = static_cast<T>(settings.beta2) * args.second[i] +
                     static_cast<T>(1 - settings.beta2) * gradient * gradient;
    args.first[i] = mean;
    args.second[i] = square;
    const T divisor = std::sqrt(square) / root_correction + static_cast<T>(settings.epsilon);
    args.parameters[i] = keep * args.parameters[i] - rate * (mean / divisor);
  }
};

/// Rounds numbers to those that kernels read: parameters that Update did not write, images, gradients. One
/// thread per number.
template <class T, class S>
struct RoundNumbers {
  struct Args {
    int count;
    const T* from;
    S* to;
  };
  static constexpr int kThreads = 128;
  using Shared = NoMemory;
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.count, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (i < args.count) args.to[i] = static_cast<S>(args.from[i]);
  }
};

}  // namespace ddp::train::kernels::device
