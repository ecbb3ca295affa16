// Compiled once per instruction set (CMakeLists.txt gives DDP_KERNEL_ISA and the flags). This file must
// include no inline functions that other files share: the linker could keep a copy that only a newer
// processor runs. So everything here is in an unnamed namespace.

#include "apps/train/kernels/cpu/kernel_table.h"

namespace ddp::train::kernels {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kTilePixels =
    14;  // times two vectors: 28 of 32 registers, and both widths (28, 14) are whole tiles
constexpr int kTileTaps = 10;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kTilePixels = 6;  // times two vectors: 12 of 16 registers
constexpr int kTileTaps = 5;
#else
constexpr int kVectorBytes = 16;
constexpr int kTilePixels = 6;
constexpr int kTileTaps = 5;
#endif

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::Type;

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

/// V is Vector<T>, or T itself for channels that fill no vector: the same code serves both.
template <class V, class T>
[[gnu::always_inline]] inline V load(const T* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class V, class T>
[[gnu::always_inline]] inline void store(T* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

/// Calls body.template operator()<V>(channel) for all channels: vectors first, then single ones.
template <class T, class Body>
[[gnu::always_inline]] inline void for_channels(int channels, Body body) {
  int channel = 0;
  for (; channel + kLanes<T> <= channels; channel += kLanes<T>)
    body.template operator()<Vector<T>>(channel);
  for (; channel < channels; ++channel)
    body.template operator()<T>(channel);
}

/// The same with block.template operator()<V, Vectors>(channel): two vectors at a time first.
template <class T, class Block>
[[gnu::always_inline]] inline void for_channel_blocks(int channels, Block block) {
  int channel = 0;
  for (; channel + 2 * kLanes<T> <= channels; channel += 2 * kLanes<T>) {
    block.template operator()<Vector<T>, 2>(channel);
  }
  for (; channel + kLanes<T> <= channels; channel += kLanes<T>) {
    block.template operator()<Vector<T>, 1>(channel);
  }
  for (; channel < channels; ++channel)
    block.template operator()<T, 1>(channel);
}

/// Computes `Pixels` neighbors of one row times `Vectors` vectors of output channels, in registers over all
/// taps. InChannels 0: known only at run time.
template <class T, class V, int Vectors, int Pixels, int InChannels>
inline void convolve_tile(const ConvShape& shape, const T* corner, const T* weight, const T* bias,
                          T* output) {
  constexpr int kStep = sizeof(V) / sizeof(T);
  const int in_channels = InChannels ? InChannels : shape.in_channels;
  const int taps = shape.window * in_channels;
  const std::ptrdiff_t row_size = static_cast<std::ptrdiff_t>(shape.padded_width()) * in_channels;
  V sum[Pixels][Vectors];
#pragma GCC unroll 16
  for (int p = 0; p < Pixels; ++p) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v)
      sum[p][v] = bias ? load<V>(bias + v * kStep) : V{};
  }
  for (int ky = 0; ky < shape.window; ++ky) {
    const T* row = corner + ky * row_size;
    for (int tap = 0; tap < taps; ++tap) {
      V w[Vectors];
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v)
        w[v] = load<V>(weight + v * kStep);
#pragma GCC unroll 16
      for (int p = 0; p < Pixels; ++p) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v)
          sum[p][v] += row[p * in_channels + tap] * w[v];
      }
      weight += shape.out_channels;
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < Pixels; ++p) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v)
      store(output + p * shape.out_channels + v * kStep, sum[p][v]);
  }
}

/// Computes one row from pixel `x` on, with tiles of `Pixels`, then of fewer pixels.
template <class T, class V, int Vectors, int Pixels, int InChannels>
inline void convolve_row(const ConvShape& shape, int x, const T* row, const T* weight, const T* bias,
                         T* output) {
  for (; x + Pixels <= shape.width; x += Pixels) {
    convolve_tile<T, V, Vectors, Pixels, InChannels>(shape, row + x * shape.in_channels, weight, bias,
                                                     output + x * shape.out_channels);
  }
  if constexpr (Pixels > 1) {
    if (x < shape.width) {
      convolve_row<T, V, Vectors, (Pixels > 4 ? Pixels - 2 : Pixels - 1), InChannels>(shape, x, row, weight,
                                                                                      bias, output);
    }
  }
}

template <class T, int InChannels>
void convolve_channels(const ConvShape& shape, const T* padded, const T* weight, const T* bias, T* output) {
  const std::ptrdiff_t in_row = static_cast<std::ptrdiff_t>(shape.padded_width()) * shape.in_channels;
  const std::ptrdiff_t out_row = static_cast<std::ptrdiff_t>(shape.width) * shape.out_channels;
  // Channels are the outer loop, so that a block's weights stay in the first-level cache over all rows.
  const auto block = [&]<class V, int Vectors>(int channel) {
    const T* channel_bias = bias ? bias + channel : nullptr;
    for (int y = 0; y < shape.height; ++y) {
      convolve_row<T, V, Vectors, kTilePixels, InChannels>(shape, 0, padded + y * in_row, weight + channel,
                                                           channel_bias, output + y * out_row + channel);
    }
  };
  for_channel_blocks<T>(shape.out_channels, block);
}

template <class T>
void convolve(const ConvShape& shape, const T* padded, const T* weight, const T* bias, T* output) {
  // With the model's own sizes as constants, pixel addresses become displacements instead of fourteen
  // registers.
  switch (shape.in_channels) {
    case 1: return convolve_channels<T, 1>(shape, padded, weight, bias, output);
    case 16: return convolve_channels<T, 16>(shape, padded, weight, bias, output);
    case 32: return convolve_channels<T, 32>(shape, padded, weight, bias, output);
    default: return convolve_channels<T, 0>(shape, padded, weight, bias, output);
  }
}

/// Sums `Taps` neighboring (kx, in) of one ky times `Vectors` vectors of output channels in registers over
/// the image.
template <class T, class V, int Vectors, int Taps>
inline void weight_gradient_tile(const ConvShape& shape, const T* corner, const T* gradient,
                                 std::ptrdiff_t stride, T* weight_gradient) {
  constexpr int kStep = sizeof(V) / sizeof(T);
  const std::ptrdiff_t in_row = static_cast<std::ptrdiff_t>(shape.padded_width()) * shape.in_channels;
  V sum[Taps][Vectors];
#pragma GCC unroll 16
  for (int t = 0; t < Taps; ++t) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v)
      sum[t][v] = V{};
  }
  for (int y = 0; y < shape.height; ++y) {
    const T* in = corner + y * in_row;
    const T* out = gradient + y * stride;
    for (int x = 0; x < shape.width; ++x) {
      V g[Vectors];
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v)
        g[v] = load<V>(out + v * kStep);
#pragma GCC unroll 16
      for (int t = 0; t < Taps; ++t) {
#pragma GCC unroll 2
        for (int v = 0; v < Vectors; ++v)
          sum[t][v] += in[t] * g[v];
      }
      in += shape.in_channels;
      out += shape.out_channels;
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < Taps; ++t) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      T* to = weight_gradient + t * shape.out_channels + v * kStep;
      store(to, load<V>(to) + sum[t][v]);
    }
  }
}

template <class T, class V, int Vectors, int Taps>
inline void weight_gradient_taps(const ConvShape& shape, int tap, const T* row, const T* gradient,
                                 std::ptrdiff_t stride, T* weight_gradient) {
  for (; tap + Taps <= shape.taps_per_row(); tap += Taps) {
    weight_gradient_tile<T, V, Vectors, Taps>(shape, row + tap, gradient, stride,
                                              weight_gradient + tap * shape.out_channels);
  }
  if constexpr (Taps > 1) {
    if (tap < shape.taps_per_row()) {
      weight_gradient_taps<T, V, Vectors, (Taps > 5 ? 5 : Taps - 1)>(shape, tap, row, gradient, stride,
                                                                     weight_gradient);
    }
  }
}

template <class T>
void convolve_weight_gradient(const ConvShape& shape, const T* padded, const T* output_gradient,
                              std::ptrdiff_t gradient_stride, T* weight_gradient) {
  const std::ptrdiff_t in_row = static_cast<std::ptrdiff_t>(shape.padded_width()) * shape.in_channels;
  const std::ptrdiff_t ky_size = static_cast<std::ptrdiff_t>(shape.taps_per_row()) * shape.out_channels;
  const auto block = [&]<class V, int Vectors>(int channel) {
    for (int ky = 0; ky < shape.window; ++ky) {
      weight_gradient_taps<T, V, Vectors, kTileTaps>(shape, 0, padded + ky * in_row,
                                                     output_gradient + channel, gradient_stride,
                                                     weight_gradient + ky * ky_size + channel);
    }
  };
  for_channel_blocks<T>(shape.out_channels, block);
}

template <class T>
void turn_weights(const ConvShape& shape, const T* weight, T* turned) {
  const int places = shape.window * shape.window;
  const int ins = shape.in_channels;
  const int outs = shape.out_channels;
  for (int place = 0; place < places; ++place) {
    const T* from = weight + static_cast<std::ptrdiff_t>(places - 1 - place) * ins * outs;
    T* to = turned + static_cast<std::ptrdiff_t>(place) * ins * outs;
    for (int in = 0; in < ins; ++in) {
      for (int out = 0; out < outs; ++out)
        to[out * ins + in] = from[in * outs + out];
    }
  }
}

template <class T>
void channel_moments(int pixels, int channels, const T* image, T* mean, T* squares) {
  for_channels<T>(channels, [&]<class V>(int channel) {
    const T* const first = image + channel;
    // Four sums at once hide the latency of the addition, and round less than one long sum.
    V sum[4] = {};
    int pixel = 0;
    for (; pixel + 4 <= pixels; pixel += 4) {
      const T* at = first + static_cast<std::ptrdiff_t>(pixel) * channels;
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        sum[k] += load<V>(at + k * channels);
    }
    for (; pixel < pixels; ++pixel)
      sum[0] += load<V>(first + static_cast<std::ptrdiff_t>(pixel) * channels);
    const V average = ((sum[0] + sum[1]) + (sum[2] + sum[3])) / static_cast<T>(pixels);

    V square[4] = {};
    for (pixel = 0; pixel + 4 <= pixels; pixel += 4) {
      const T* at = first + static_cast<std::ptrdiff_t>(pixel) * channels;
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const V difference = load<V>(at + k * channels) - average;
        square[k] += difference * difference;
      }
    }
    for (; pixel < pixels; ++pixel) {
      const V difference = load<V>(first + static_cast<std::ptrdiff_t>(pixel) * channels) - average;
      square[0] += difference * difference;
    }
    store(mean + channel, average);
    store(squares + channel, (square[0] + square[1]) + (square[2] + square[3]));
  });
}

template <class T>
void channel_sum(int height, int width, int channels, const T* image, std::ptrdiff_t stride, T* sum) {
  for_channels<T>(channels, [&]<class V>(int channel) {
    V total = V{};
    for (int y = 0; y < height; ++y) {
      const T* at = image + y * stride + channel;
      V row[2] = {};
      int x = 0;
      for (; x + 2 <= width; x += 2, at += 2 * channels) {
        row[0] += load<V>(at);
        row[1] += load<V>(at + channels);
      }
      if (x < width) row[0] += load<V>(at);
      total += row[0] + row[1];
    }
    store(sum + channel, load<V>(sum + channel) + total);
  });
}

/// The four pixels of a 2 x 2 window in row order, and their normalized values.
template <class V>
struct Window {
  V x[4];
  V z[4];

  template <class T>
  [[gnu::always_inline]] static Window read(const T* corner, std::ptrdiff_t row, int channels, V scale,
                                            V shift) {
    Window window;
    window.x[0] = load<V>(corner);
    window.x[1] = load<V>(corner + channels);
    window.x[2] = load<V>(corner + row);
    window.x[3] = load<V>(corner + row + channels);
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
      window.z[k] = window.x[k] * scale + shift;
    return window;
  }
};

template <class V>
[[gnu::always_inline]] inline V larger(V a, V b) {
  return b > a ? b : a;
}

template <class T>
void norm_relu_pool(int height, int width, int channels, const T* image, NormScale<T> norm, T* pooled,
                    std::ptrdiff_t stride) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(width) * channels;
  for_channels<T>(channels, [&]<class V>(int channel) {
    const V scale = load<V>(norm.scale + channel);
    const V shift = load<V>(norm.shift + channel);
    for (int y = 0; y < height / 2; ++y) {
      const T* from = image + 2 * y * row + channel;
      T* to = pooled + y * stride + channel;
      for (int x = 0; x < width / 2; ++x, from += 2 * channels, to += channels) {
        const Window<V> w = Window<V>::read(from, row, channels, scale, shift);
        // ReLU preserves order, so it may come after the maximum.
        const V best = larger(larger(w.z[0], w.z[1]), larger(w.z[2], w.z[3]));
        store(to, larger(V{}, best));
      }
    }
  });
}

/// `winner[k]` receives `gradient` if pixel k is the first maximum in row order and above zero, else zero.
/// Ties of other maxima do not matter, since ReLU stops their gradient.
template <class V>
[[gnu::always_inline]] inline void share_gradient(const Window<V>& w, V gradient, V winner[4]) {
  const V zero = V{};
  const auto first = w.z[1] > w.z[0];  // the second of the upper pair wins only if greater
  const V upper = first ? w.z[1] : w.z[0];
  const auto second = w.z[3] > w.z[2];
  const V lower = second ? w.z[3] : w.z[2];
  const auto below = lower > upper;
  const V best = below ? lower : upper;
  const V alive = best > zero ? gradient : zero;
  const V to_upper = below ? zero : alive;
  const V to_lower = below ? alive : zero;
  winner[0] = first ? zero : to_upper;
  winner[1] = first ? to_upper : zero;
  winner[2] = second ? zero : to_lower;
  winner[3] = second ? to_lower : zero;
}

template <class T>
void pool_gradient_sums(int height, int width, int channels, const T* image, NormScale<T> norm,
                        const T* pooled_gradient, T* gradient_sum, T* product_sum) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(width) * channels;
  for_channels<T>(channels, [&]<class V>(int channel) {
    const V scale = load<V>(norm.scale + channel);
    const V shift = load<V>(norm.shift + channel);
    V gradients = V{};
    V products = V{};
    const T* gradient = pooled_gradient + channel;
    for (int y = 0; y < height / 2; ++y) {
      const T* from = image + 2 * y * row + channel;
      for (int x = 0; x < width / 2; ++x, from += 2 * channels, gradient += channels) {
        const Window<V> w = Window<V>::read(from, row, channels, scale, shift);
        V winner[4];
        share_gradient<V>(w, load<V>(gradient), winner);
        gradients += (winner[0] + winner[1]) + (winner[2] + winner[3]);
        products += (winner[0] * w.x[0] + winner[1] * w.x[1]) + (winner[2] * w.x[2] + winner[3] * w.x[3]);
      }
    }
    store(gradient_sum + channel, gradients);
    store(product_sum + channel, products);
  });
}

template <class T>
void norm_relu_pool_gradient(int height, int width, int channels, const T* image, NormScale<T> norm,
                             NormGradient<T> spread, const T* pooled_gradient, T* image_gradient,
                             std::ptrdiff_t stride) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(width) * channels;
  for_channels<T>(channels, [&]<class V>(int channel) {
    const V scale = load<V>(norm.scale + channel);
    const V shift = load<V>(norm.shift + channel);
    const V gain = load<V>(spread.scale + channel);
    const V offset = load<V>(spread.offset + channel);
    const V slope = load<V>(spread.slope + channel);
    const T* gradient = pooled_gradient + channel;
    for (int y = 0; y < height / 2; ++y) {
      const T* from = image + 2 * y * row + channel;
      T* to = image_gradient + 2 * y * stride + channel;
      for (int x = 0; x < width / 2; ++x, from += 2 * channels, to += 2 * channels, gradient += channels) {
        const Window<V> w = Window<V>::read(from, row, channels, scale, shift);
        V winner[4];
        share_gradient<V>(w, load<V>(gradient), winner);
        store<V>(to, winner[0] * gain + (w.x[0] * slope + offset));
        store<V>(to + channels, winner[1] * gain + (w.x[1] * slope + offset));
        store<V>(to + stride, winner[2] * gain + (w.x[2] * slope + offset));
        store<V>(to + stride + channels, winner[3] * gain + (w.x[3] * slope + offset));
      }
    }
  });
}

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

// The loops of Goto and van de Geijn (2008): blocks of both factors are copied ("packed") into panels. The
// innermost loop reads them in order and keeps one tile of the product in registers over a block of the
// depth.
template <class T>
constexpr int kPanelColumns = 2 * kLanes<T>;
constexpr int kPanelRows = kTilePixels;

/// Packs panels of kPanelRows rows: for each depth, the rows side by side. Missing rows are zero.
template <class T>
void pack_rows(int rows, int depth, const T* from, std::ptrdiff_t row_stride, std::ptrdiff_t depth_stride,
               T* to) {
  for (int panel = 0; panel < rows; panel += kPanelRows) {
    const int count = rows - panel < kPanelRows ? rows - panel : kPanelRows;
    for (int d = 0; d < depth; ++d) {
      const T* at = from + panel * row_stride + d * depth_stride;
      for (int r = 0; r < count; ++r)
        to[r] = at[r * row_stride];
      for (int r = count; r < kPanelRows; ++r)
        to[r] = T{};
      to += kPanelRows;
    }
  }
}

template <class T>
void pack_columns(int columns, int depth, const T* from, std::ptrdiff_t depth_stride,
                  std::ptrdiff_t column_stride, T* to) {
  for (int panel = 0; panel < columns; panel += kPanelColumns<T>) {
    const int count = columns - panel < kPanelColumns<T> ? columns - panel : kPanelColumns<T>;
    if (column_stride != 1 && count == kPanelColumns<T>) {
      // The depth is contiguous then, so each column's numbers are read in order.
      for (int c = 0; c < count; ++c) {
        const T* at = from + (panel + c) * column_stride;
        for (int d = 0; d < depth; ++d)
          to[d * kPanelColumns<T> + c] = at[d * depth_stride];
      }
      to += static_cast<std::ptrdiff_t>(depth) * kPanelColumns<T>;
      continue;
    }
    for (int d = 0; d < depth; ++d) {
      const T* at = from + d * depth_stride + panel * column_stride;
      for (int c = 0; c < count; ++c)
        to[c] = at[c * column_stride];
      for (int c = count; c < kPanelColumns<T>; ++c)
        to[c] = T{};
      to += kPanelColumns<T>;
    }
  }
}

/// Computes one tile of the product of two panels into `tile` (rows `stride` apart): added if `add`, else
/// written.
template <class T>
inline void multiply_panels(int depth, const T* rows, const T* columns, T* tile, std::ptrdiff_t stride,
                            bool add) {
  using V = Vector<T>;
  V sum[kPanelRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kPanelRows; ++r)
    sum[r][0] = sum[r][1] = V{};
  for (int d = 0; d < depth; ++d) {
    const V left = load<V>(columns);
    const V right = load<V>(columns + kLanes<T>);
#pragma GCC unroll 16
    for (int r = 0; r < kPanelRows; ++r) {
      sum[r][0] += rows[r] * left;
      sum[r][1] += rows[r] * right;
    }
    rows += kPanelRows;
    columns += kPanelColumns<T>;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kPanelRows; ++r) {
    T* to = tile + r * stride;
    if (add) {
      store<V>(to, load<V>(to) + sum[r][0]);
      store<V>(to + kLanes<T>, load<V>(to + kLanes<T>) + sum[r][1]);
    } else {
      store(to, sum[r][0]);
      store(to + kLanes<T>, sum[r][1]);
    }
  }
}

/// Computes a tile that the matrix's edge cuts, by way of a whole tile.
template <class T>
void multiply_edge(int depth, const T* rows, const T* columns, T* tile, std::ptrdiff_t stride, bool add,
                   int row_count, int column_count) {
  T whole[kPanelRows * kPanelColumns<T>];
  multiply_panels<T>(depth, rows, columns, whole, kPanelColumns<T>, false);
  for (int r = 0; r < row_count; ++r) {
    for (int c = 0; c < column_count; ++c) {
      const T value = whole[r * kPanelColumns<T> + c];
      T& to = tile[r * stride + c];
      to = add ? to + value : value;
    }
  }
}

template <class T>
void multiply_blocks(int rows, int columns, int depth, const T* packed_rows, const T* packed_columns, T* c,
                     std::ptrdiff_t stride, bool add) {
  for (int column = 0; column < columns; column += kPanelColumns<T>) {
    const T* right = packed_columns + static_cast<std::ptrdiff_t>(column) * depth;
    const int column_count = columns - column < kPanelColumns<T> ? columns - column : kPanelColumns<T>;
    for (int row = 0; row < rows; row += kPanelRows) {
      const T* left = packed_rows + static_cast<std::ptrdiff_t>(row) * depth;
      const int row_count = rows - row < kPanelRows ? rows - row : kPanelRows;
      T* tile = c + row * stride + column;
      if (row_count == kPanelRows && column_count == kPanelColumns<T>) {
        multiply_panels<T>(depth, left, right, tile, stride, add);
      } else {
        multiply_edge<T>(depth, left, right, tile, stride, add, row_count, column_count);
      }
    }
  }
}

template <class T>
void gemm(const GemmShape& shape, const T* a, const T* b, T* c, T* scratch) {
  static_assert(kGemmRows % kPanelRows == 0 && kGemmColumns % kPanelColumns<T> == 0);
  T* packed_rows = scratch;
  T* packed_columns = scratch + kGemmRows * kGemmDepth;
  const auto part = [](int whole, int begin, int most) {
    return whole - begin < most ? whole - begin : most;
  };
  for (int column = 0; column < shape.columns; column += kGemmColumns) {
    const int columns = part(shape.columns, column, kGemmColumns);
    for (int deep = 0; deep < shape.depth; deep += kGemmDepth) {
      const int depth = part(shape.depth, deep, kGemmDepth);
      pack_columns<T>(columns, depth, b + deep * shape.b_depth + column * shape.b_column, shape.b_depth,
                      shape.b_column, packed_columns);
      for (int row = 0; row < shape.rows; row += kGemmRows) {
        const int rows = part(shape.rows, row, kGemmRows);
        pack_rows<T>(rows, depth, a + row * shape.a_row + deep * shape.a_depth, shape.a_row, shape.a_depth,
                     packed_rows);
        multiply_blocks<T>(rows, columns, depth, packed_rows, packed_columns, c + row * shape.c_row + column,
                           shape.c_row, deep > 0);
      }
    }
  }
}

}  // namespace

namespace DDP_KERNEL_ISA {

#define DDP_KERNEL_TEXT_OF(name) #name
#define DDP_KERNEL_TEXT(name) DDP_KERNEL_TEXT_OF(name)

#define DDP_KERNEL_TABLE(T)                                                                     \
  {                                                                                             \
    DDP_KERNEL_TEXT(DDP_KERNEL_ISA), convolve<T>, convolve_weight_gradient<T>, turn_weights<T>, \
        channel_moments<T>, channel_sum<T>, norm_relu_pool<T>, pool_gradient_sums<T>,           \
        norm_relu_pool_gradient<T>, linear<T>, linear_gradient<T>, gemm<T>                      \
  }

const KernelTable<float> kFloat = DDP_KERNEL_TABLE(float);
const KernelTable<double> kDouble = DDP_KERNEL_TABLE(double);

}  // namespace DDP_KERNEL_ISA
}  // namespace ddp::train::kernels
