#pragma once

#include <span>

namespace ddp::train::kernels {

// What happens to a reduced gradient before the update. Same bits on every processor, as sgd_step.

/// to += from.
template <class T>
void add(std::span<T> to, std::span<const T> from);
/// Multiplies by `share`; false when a number is nan or infinite afterwards.
template <class T>
bool average(std::span<T> values, T share);
/// Into [-limit, limit]; a nan stays a nan.
template <class T>
void clip_value(std::span<T> values, T limit);
/// In double, in order.
template <class T>
double squared_norm(std::span<const T> values);

}  // namespace ddp::train::kernels
