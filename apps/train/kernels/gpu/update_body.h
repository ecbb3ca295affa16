#pragma once

#include <cmath>
#include <cstdint>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// Input of a step, set by the host.
struct StepInput {
  double lr;
  std::uint64_t first;  ///< position of the batch in the order of the samples
};

/// Outcome of a step, read by the host.
struct StepOutcome {
  double loss;  ///< mean over the ranks
  double norm;  ///< gradient norm before clipping; only with clip_norm
  int skip;     ///< the gradient was not finite; nothing was changed
};

/// Input and outcome of one step, in host memory that kernels access. The host writes the input before it
/// launches the step, and reads the outcome after an event behind the step. CUDA orders both, so kernels need
/// no fence of the system. A kernel reads a slot once: each read crosses the bus.
struct alignas(64) StepSlot {
  StepInput input;
  StepOutcome outcome;
};

/// One slot for each step in flight.
struct StepSlots {
  static constexpr unsigned kCount = 4;
  StepSlot* slots;
  unsigned* turn;  ///< in GPU memory: steps made so far; a captured graph does not contain it

  DDP_HD StepSlot& present() const { return slots[*turn % kCount]; }
};

/// The decisions that a step makes on the device; a captured graph does not contain them. The state stays in
/// device memory for the whole training.
struct StepState {
  double lr;
  std::int64_t steps;  ///< updates made so far
  int skip;            ///< the last gradient was not finite; nothing was changed
  int dropped;         ///< steps skipped so far
  double factor;       ///< factor of the gradient: below 1 if it is clipped, else 1
  // AdamW's values for this step.
  double rate, keep, root_correction;
};

/// The hyperparameters by value; constant while a graph exists.
struct UpdateSettings {
  bool adamw;
  double momentum;               ///< SGD
  double beta1, beta2, epsilon;  ///< AdamW
  double decay;
  double clip_value, clip_norm;  ///< 0: off
};

/// Averages the reduced gradient and clips it by value; also counts numbers that are not finite and sums
/// squares. The loss follows the `count` gradients; it is neither clipped nor part of the norm.
template <class T>
struct GradientCheck {
  struct Args {
    int count;
    T* values;  ///< [count + 1]
    T share;    ///< 1 / (ranks * batches)
    double clip_value;
    double* squares;  ///< [blocks]
    int* infinite;    ///< [blocks]
  };
  static constexpr int kThreads = 256;
  static constexpr int kItems = 4;
  static constexpr int kRounds = halvings(kThreads);
  struct Shared {
    double squares[kThreads];
    int infinite[kThreads];
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.count + 1, kThreads * kItems); }
  static DDP_HD int phases(const Args&) { return kRounds + 2; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      begin(at, shared, args);
    } else if (phase <= kRounds) {
      halve(shared.squares, kThreads, phase - 1, at.thread);
      halve(shared.infinite, kThreads, phase - 1, at.thread);
    } else if (at.thread == 0) {
      args.squares[at.block] = shared.squares[0];
      args.infinite[at.block] = shared.infinite[0];
    }
  }

 private:
  static DDP_HD void begin(ThreadIndex at, Shared& shared, const Args& args) {
    const int first = at.block * kItems * kThreads + at.thread;
    T own[kItems];  // all loads start before the first result
    DDP_UNROLL
    for (int k = 0; k < kItems; ++k)
      own[k] = first + k * kThreads <= args.count ? args.values[first + k * kThreads] : T(0);
    const bool changes = args.share != T(1) || args.clip_value > 0;
    const T limit = static_cast<T>(args.clip_value);
    double squares = 0;
    int infinite = 0;
    DDP_UNROLL
    for (int k = 0; k < kItems; ++k) {
      const int i = first + k * kThreads;
      T value = own[k] * args.share;
      if (!(value * T(0) == T(0))) ++infinite;
      if (i < args.count) {
        if (args.clip_value > 0) {  // these comparisons keep a nan
          value = value > limit ? limit : value;
          value = value < -limit ? -limit : value;
        }
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
      if (changes && i <= args.count) args.values[i] = value;
    }
    shared.squares[at.thread] = squares;
    shared.infinite[at.thread] = infinite;
  }
};

/// Decides what the update does; one block.
template <class T>
struct StepDecision {
  struct Args {
    int blocks;  ///< of GradientCheck
    const double* squares;
    const int* infinite;
    UpdateSettings settings;
    const T* loss;  ///< follows the gradients
    StepState* state;
    StepSlots step;
  };
  static constexpr int kThreads = 256;
  static constexpr int kRounds = halvings(kThreads);
  struct Shared {
    double squares[kThreads];
    int infinite[kThreads];
  };
  struct Local {
    double lr;  ///< read early, since it is in host memory; only of thread 0
  };

  static DDP_HD int blocks(const Args&) { return 1; }
  static DDP_HD int phases(const Args&) { return kRounds + 2; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    if (phase == 0) {
      if (at.thread == 0) local.lr = args.step.present().input.lr;
      double squares = 0;
      int infinite = 0;
      for (int i = at.thread; i < args.blocks; i += kThreads) {
        squares += args.squares[i];
        infinite += args.infinite[i] != 0 ? 1 : 0;
      }
      shared.squares[at.thread] = squares;
      shared.infinite[at.thread] = infinite;
    } else if (phase <= kRounds) {
      halve(shared.squares, kThreads, phase - 1, at.thread);
      halve(shared.infinite, kThreads, phase - 1, at.thread);
    } else if (at.thread == 0) {
      finish(shared.squares[0], shared.infinite[0] != 0, local.lr, args);
    }
  }

 private:
  static DDP_HD void finish(double squares, bool infinite, double lr, const Args& args) {
    StepState& state = *args.state;
    const UpdateSettings& settings = args.settings;
    StepSlot& slot = args.step.present();
    ++*args.step.turn;
    const double norm = !infinite && settings.clip_norm > 0 ? std::sqrt(squares) : 0;
    slot.outcome = {static_cast<double>(*args.loss), norm, infinite ? 1 : 0};
    state.skip = infinite ? 1 : 0;
    state.factor = 1;
    if (infinite) {
      ++state.dropped;
      return;
    }
    ++state.steps;
    state.lr = lr;
    if (settings.adamw) {
      const double count = static_cast<double>(state.steps);
      state.root_correction = std::sqrt(1 - std::pow(settings.beta2, count));
      state.rate = state.lr / (1 - std::pow(settings.beta1, count));
      state.keep = 1 - state.lr * settings.decay;
    }
    if (!(settings.clip_norm > 0)) return;
    const double factor = settings.clip_norm / (norm + 1e-6);  // as torch.nn.utils.clip_grad_norm_
    if (factor < 1) state.factor = factor;
  }
};

}  // namespace ddp::train::kernels::device
