#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "apps/train/kernels/cpu/kernel_table.h"
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
    if (settings.kind == OptimizerKind::kAdamw) {
      const double count = static_cast<double>(state.steps);
      state.root_correction = std::sqrt(1 - std::pow(settings.beta2, count));
      state.rate = state.lr / (1 - std::pow(settings.beta1, count));
      state.keep = 1 - state.lr * settings.weight_decay;
    }
    if (!(settings.clip_norm > 0)) return;
    const double factor = settings.clip_norm / (norm + 1e-6);  // as torch.nn.utils.clip_grad_norm_
    if (factor < 1) state.factor = factor;
  }
};

/// Copies a batch of the images in GPU memory, and their labels: value / 255 with `border` zero pixels
/// around, as fill_batch() (dataset.h). `order` selects the samples. The step's slot says where in `order`
/// the batch begins, so that a captured graph takes another batch each time. One block per image.
template <class T>
struct Gather {
  struct Args {
    int batch;
    int border;
    const std::uint8_t* images;  ///< [samples][kImagePixels]
    const std::uint8_t* labels;  ///< [samples]
    const std::uint32_t* order;
    StepSlots step;
    T* batch_images;  ///< [batch][side * side]
    std::uint8_t* batch_labels;
  };
  static constexpr int kThreads = 256;
  struct Shared {
    std::size_t sample;
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return args.batch; }
  static DDP_HD int phases(const Args&) { return 2; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    if (phase == 0) {
      if (at.thread == 0) shared.sample = args.order[args.step.present().input.first + at.block];
      return;
    }
    const std::size_t sample = shared.sample;
    const std::uint8_t* from = args.images + sample * kImagePixels;
    const int side = kImageSide + 2 * args.border;
    T* to = args.batch_images + static_cast<std::size_t>(at.block) * side * side;
    for (int i = at.thread; i < side * side; i += kThreads) {
      const int y = i / side - args.border, x = i % side - args.border;
      const bool inside = y >= 0 && y < kImageSide && x >= 0 && x < kImageSide;
      to[i] = inside ? static_cast<T>(from[y * kImageSide + x]) / T(255) : T(0);
    }
    if (at.thread == 0) args.batch_labels[at.block] = args.labels[sample];
  }
};

/// SGD or AdamW over the flat vectors, line by line as in weight_update.cc. The step's running statistics
/// then replace the old ones. One thread per number. A skipped step changes nothing. The build uses no fused
/// multiply-add, so that SGD gives the bits of a CPU. S: storage type of the weights that the next step's
/// kernels read. If S is not T, these weights are stored beside the parameters.
template <class T, class S = T>
struct Update : OnePhase {
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

  static DDP_HD int blocks(const Args& args) { return divide_up(args.count + args.running_count, kThreads); }

  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (args.state->skip != 0) return;
    if (i < args.count) {
      const double factor = args.state->factor;
      const T gradient = factor < 1 ? args.gradients[i] * static_cast<T>(factor) : args.gradients[i];
      if (args.settings.kind == OptimizerKind::kAdamw) {
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
    const T momentum = static_cast<T>(args.settings.momentum),
            decay = static_cast<T>(args.settings.weight_decay);
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
struct RoundNumbers : OnePhase {
  struct Args {
    int count;
    const T* from;
    S* to;
  };
  static constexpr int kThreads = 128;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.count, kThreads); }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (i < args.count) args.to[i] = static_cast<S>(args.from[i]);
  }
};

}  // namespace ddp::train::kernels::device
