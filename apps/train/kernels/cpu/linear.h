#pragma once

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/cpu/vector.h"

namespace ddp::train::kernels {
namespace {

/// Returns the dot product, in kLanes partial sums that are added in lane order at the end.
template <class T>
inline T dot(int count, const T* a, const T* b) {
  using V = Vector<T>;
  V sum[4] = {};
  int i = 0;
  for (; i + 4 * kLanes<T> <= count; i += 4 * kLanes<T>) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
      sum[k] += load<V>(a + i + k * kLanes<T>) * load<V>(b + i + k * kLanes<T>);
  }
  for (; i + kLanes<T> <= count; i += kLanes<T>)
    sum[0] += load<V>(a + i) * load<V>(b + i);
  const V lanes = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  T total = 0;
  for (int lane = 0; lane < kLanes<T>; ++lane)
    total += lanes[lane];
  for (; i < count; ++i)
    total += a[i] * b[i];
  return total;
}

template <class T>
void linear(const LinearShape& shape, const T* input, const T* weight, const T* bias, T* output) {
  for (int n = 0; n < shape.batch; ++n) {
    const T* in = input + static_cast<std::ptrdiff_t>(n) * shape.inputs;
    for (int o = 0; o < shape.outputs; ++o) {
      output[n * shape.outputs + o] =
          bias[o] + dot(shape.inputs, in, weight + static_cast<std::ptrdiff_t>(o) * shape.inputs);
    }
  }
}

template <class T>
void linear_gradient(const LinearShape& shape, const T* input, const T* weight, const T* output_gradient,
                     T* input_gradient, T* weight_gradient, T* bias_gradient) {
  const std::ptrdiff_t inputs = shape.inputs;
  for_channels<T>(shape.inputs, [&]<class V>(int i) {
    // Processes one vector of inputs at a time, so its weights and gradients stay in registers over the
    // batch.
    V w[kMaxLinearOutputs];
    V sum[kMaxLinearOutputs];
    for (int o = 0; o < shape.outputs; ++o) {
      w[o] = load<V>(weight + o * inputs + i);
      sum[o] = V{};
    }
    for (int n = 0; n < shape.batch; ++n) {
      const T* g = output_gradient + n * shape.outputs;
      const V in = load<V>(input + n * inputs + i);
      V back = V{};
      for (int o = 0; o < shape.outputs; ++o) {
        back += g[o] * w[o];
        sum[o] += g[o] * in;
      }
      store(input_gradient + n * inputs + i, back);
    }
    for (int o = 0; o < shape.outputs; ++o)
      store(weight_gradient + o * inputs + i, sum[o]);
  });
  for (int o = 0; o < shape.outputs; ++o) {
    T sum = 0;
    for (int n = 0; n < shape.batch; ++n)
      sum += output_gradient[n * shape.outputs + o];
    bias_gradient[o] = sum;
  }
}

}  // namespace
}  // namespace ddp::train::kernels
