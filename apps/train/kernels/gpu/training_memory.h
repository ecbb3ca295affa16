#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "apps/train/data/image_size.h"
#include "apps/train/kernels/gpu/head_body.h"
#include "apps/train/kernels/gpu/update_body.h"

namespace ddp::train::kernels::device {

/// Position of one array in an arena, for a program that compares two memories.
struct ArenaPart {
  std::size_t begin;  ///< bytes
  std::size_t count;  ///< numbers
  std::size_t size;   ///< bytes of a number
  bool floating_point;
};

/// Divides one piece of memory, the host's or a GPU's, into arrays. Without memory, it only counts:
///
///   Arena counting;  lay_out(counting);  allocate(counting.size());  Arena arena(memory);  lay_out(arena);
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::byte* memory) : memory_(memory) {}
  /// Only counts, and records each array in `parts`.
  explicit Arena(std::vector<ArenaPart>& parts) : parts_(&parts) {}

  template <class T>
  T* take(std::size_t count) {
    const std::size_t at = size_;
    size_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    if (parts_ != nullptr) parts_->push_back({at, count, sizeof(T), std::is_floating_point_v<T>});
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kAlignment = 256;  // bytes that a GPU reads at once
  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  std::vector<ArenaPart>* parts_ = nullptr;
};

/// Backward calls it when the launches so far compute all gradients from element `begin` on.
using OnReady = std::function<void(std::size_t begin)>;

/// Memory for a step of any model: a batch, the flat vectors, the score and the update's state. It begins
/// with zeros.
template <class T>
struct TrainingMemory {
  int count = 0;          ///< parameters
  int running_count = 0;  ///< running statistics
  T* images = nullptr;
  std::uint8_t* labels = nullptr;
  // The learned state, in one piece of memory.
  T* parameters = nullptr;
  T* first = nullptr;  ///< the optimizer's state
  T* second = nullptr;
  T* running = nullptr;
  StepState* state = nullptr;
  T* gradients = nullptr;  ///< [count + 1]: the mean loss follows them
  T* next_running = nullptr;
  ImageScores scores{};
  DeviceScore* score = nullptr;
  double* squares = nullptr;
  int* infinite = nullptr;
  unsigned* update_ticket = nullptr;
  StepSlots step{};  ///< whoever runs programs on a GPU places the slots in host memory

  TrainingMemory() = default;
  TrainingMemory(Arena& arena, int parameter_count, int running, int max_batch, int image_size)
      : count(parameter_count),
        running_count(running),
        images(arena.take<T>(static_cast<std::size_t>(max_batch) * image_size)),
        labels(arena.take<std::uint8_t>(max_batch)),
        parameters(arena.take<T>(parameter_count)),
        first(arena.take<T>(parameter_count)),
        second(arena.take<T>(parameter_count)),
        running(arena.take<T>(running)),
        state(arena.take<StepState>(1)),
        gradients(arena.take<T>(static_cast<std::size_t>(parameter_count) + 1)),
        next_running(arena.take<T>(running)),
        scores{arena.take<double>(max_batch), arena.take<int>(max_batch)},
        score(arena.take<DeviceScore>(1)),
        squares(arena.take<double>(GradientCheck<T>::blocks({parameter_count, {}, {}, {}, {}, {}}))),
        infinite(arena.take<int>(GradientCheck<T>::blocks({parameter_count, {}, {}, {}, {}, {}}))),
        update_ticket(arena.take<unsigned>(1)),
        step{arena.take<StepSlot>(StepSlots::kCount), arena.take<unsigned>(1)} {}

  std::byte* learnt() const { return reinterpret_cast<std::byte*>(parameters); }
  std::size_t learnt_bytes() const {
    return static_cast<std::size_t>(reinterpret_cast<std::byte*>(state + 1) - learnt());
  }
};

/// Adds the weights that the forward and backward kernels read, stored as S. If S is T, they are the
/// parameters. Else Update writes both, and run_round_weights() must follow every other write to the
/// parameters.
template <class T, class S = T>
struct WeightMemory : TrainingMemory<T> {
  S* weights = nullptr;  ///< [count], as parameters

  WeightMemory() = default;
  WeightMemory(Arena& arena, int parameter_count, int running, int max_batch, int image_size)
      : TrainingMemory<T>(arena, parameter_count, running, max_batch, image_size) {
    if constexpr (std::is_same_v<S, T>) {
      weights = this->parameters;
    } else {
      weights = arena.take<S>(parameter_count);
    }
  }
};

template <class T, class S, class Runner>
void run_round_weights(const Runner& runner, const WeightMemory<T, S>& m) {
  if constexpr (!std::is_same_v<S, T>)
    runner.template run<RoundNumbers<T, S>>({m.count, m.parameters, m.weights});
}

/// Computes new parameters and `weights` from the reduced gradient; `share` as in GradientCheck.
template <class T, class S, class Runner>
void run_update(const Runner& runner, const TrainingMemory<T>& m, S* weights, const UpdateSettings& settings,
                T share) {
  const typename GradientCheck<T>::Args check{m.count,   m.gradients, share, settings.clip_value,
                                              m.squares, m.infinite};
  runner.template run<WithLast<GradientCheck<T>, StepDecision<T>>>(
      {check,
       {GradientCheck<T>::blocks(check), m.squares, m.infinite, settings, m.gradients + m.count, m.state,
        m.step},
       m.update_ticket});
  runner.template run<Update<T, S>>({m.count, m.parameters, m.gradients, m.first, m.second, m.running_count,
                                     m.running, m.next_running, settings, m.state, weights});
}

template <class T, class S, class Runner>
void run_update(const Runner& runner, const WeightMemory<T, S>& m, const UpdateSettings& settings, T share) {
  run_update(runner, m, m.weights, settings, share);
}

/// For a training whose weights are the parameters.
template <class T, class Runner>
void run_update(const Runner& runner, const TrainingMemory<T>& m, const UpdateSettings& settings, T share) {
  run_update(runner, m, m.parameters, settings, share);
}

}  // namespace ddp::train::kernels::device
