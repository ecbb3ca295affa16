#pragma once

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// Lets WeightGradient read the gradient of the convolution's output from memory. PooledGradient
/// (pool_gradient_body.h) computes it instead.
template <class T, int Side, int Channels>
struct DenseGradient {
  struct Args {
    const T* gradient;  ///< rows `row_stride` elements apart, images `image_stride`
    std::ptrdiff_t image_stride;
    int row_stride;
  };
  /// Loads rows y to y + Rows - 1 of an image into the block's memory [Rows][Side][Channels], by all threads.
  template <int Rows, int Threads>
  static DDP_HD void load(int image, int y, int thread, T* to, const Args& args) {
    constexpr int kAtOnce = kLoaded<T>, kPacks = Side * Channels / kAtOnce;  // of a row
    const T* from = args.gradient + image * args.image_stride + y * args.row_stride;
    for (int i = thread; i < Rows * kPacks; i += Threads)
      load_ahead<kAtOnce>(to + i * kAtOnce, from + i / kPacks * args.row_stride + i % kPacks * kAtOnce);
  }
};

/// The gradients of a convolution's weights and bias, summed over a group of bands of seven image rows;
/// sum_body.h adds the groups. A block has a group and `WindowRows` rows of the window. A thread has one
/// input channel, four output channels and the five positions of one row of the window. It takes every
/// `Teams`-th row of each band.
template <class T, int Side, int In, int Out, int WindowRows, int Teams,
          class Gradient = DenseGradient<T, Side, Out>, class S = T>
struct WeightGradient {
  struct Args {
    int batch;
    const S* padded;  ///< the convolution's input: [batch][Side + 4][Side + 4][In]
    typename Gradient::Args gradient;
    T* parts;  ///< [groups][kSize]: weights, then bias
  };
  static constexpr int kWindow = 5;
  static constexpr int kPadded = Side + kWindow - 1;
  static constexpr int kRows = 7;
  static constexpr int kBands = Side / kRows;
  static constexpr int kInRows = kRows + WindowRows - 1;
  static constexpr int kLanes = 4;
  static constexpr int kTeam = WindowRows * In * Out / kLanes;
  static constexpr int kThreads = Teams * kTeam;
  static constexpr int kSplit = kWindow / WindowRows;  ///< blocks of one group
  static constexpr int kWeights = kWindow * kWindow * In * Out;
  static constexpr int kSize = kWeights + Out;
  /// Enough blocks for every processor of a large GPU; each group costs ColumnSums one more number.
  static constexpr int kMaxGroups = kSplit == 1 ? 528 : 211;
  static constexpr int kPart = WindowRows * kWindow * In * Out;  ///< weights of one block
  static constexpr int kGradient = kRows * Side * Out;
  static constexpr int kMinBlocks = sizeof(T) != 4 ? 0 : kSplit == 1 ? 4 : 8;  ///< see launch.cuh
  static_assert(kSplit * WindowRows == kWindow && kThreads <= 1024);
  static_assert(Teams == 1 || Teams * (kPart + Out) <= kGradient,
                "the teams' sums take the gradient's place");

  struct Shared {
    alignas(16) T in[kInRows * kPadded * In];
    Pack<T, kLanes> gradient[kGradient / kLanes];
  };
  struct Local {
    T weight[kWindow][kLanes];
    T bias[kLanes];
  };

  /// Depends on the batch alone, since it decides the order of sums.
  static DDP_HD int bands_per_group(int batch) { return divide_up(batch * kBands, kMaxGroups); }
  static DDP_HD int groups(int batch) { return divide_up(batch * kBands, bands_per_group(batch)); }
  static DDP_HD int blocks(const Args& args) { return groups(args.batch) * kSplit; }
  static DDP_HD int phases(const Args& args) { return 2 * bands_per_group(args.batch) + 2; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    const int group = at.block / kSplit, top = at.block % kSplit * WindowRows;
    if (phase == 0) {
      DDP_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        local.bias[l] = T(0);
        DDP_UNROLL
        for (int kx = 0; kx < kWindow; ++kx)
          local.weight[kx][l] = T(0);
      }
    }
    const int main = phases(args) - 2;
    if (phase < main) {
      const int band = group * bands_per_group(args.batch) + phase / 2;
      if (band >= args.batch * kBands) return;
      if (phase % 2 == 0) {
        load(band / kBands, band % kBands, top, at, shared, args);
      } else {
        add_band(at, shared, local);
        if (In > 1 && top == 0 && at.thread < Out / kLanes) add_bias(at, shared, local);
      }
    } else if (phase == main) {
      put(at, shared, local);
    } else {
      write(group, top, at, shared, local, args);
    }
  }

 private:
  static DDP_HD void load(int image, int band, int top, ThreadIndex at, Shared& shared, const Args& args) {
    const int y = band * kRows;
    const S* in = args.padded + (static_cast<std::ptrdiff_t>(image) * kPadded + y + top) * kPadded * In;
    for (int i = at.thread * kLoaded<S>; i < kInRows * kPadded * In; i += kThreads * kLoaded<S>)
      load_ahead<kLoaded<S>>(shared.in + i, in + i);
    Gradient::template load<kRows, kThreads>(image, y, at.thread, reinterpret_cast<T*>(shared.gradient),
                                             args.gradient);
  }

  static DDP_HD void add_band(ThreadIndex at, const Shared& shared, Local& local) {
    const int team = at.thread / kTeam, lane = at.thread % (Out / kLanes);
    const int channel = at.thread % kTeam / (Out / kLanes) % In;
    const int ky = at.thread % kTeam / (Out / kLanes) / In;
    const bool sums_bias = ky == 0 && channel == 0;
    for (int y = team; y < kRows; y += Teams) {
      const T* in = shared.in + (y + ky) * kPadded * In + channel;
      T taps[kWindow];
      DDP_UNROLL
      for (int k = 0; k + 1 < kWindow; ++k)
        taps[k + 1] = in[k * In];
      DDP_UNROLL
      for (int x = 0; x < Side; ++x) {
        DDP_UNROLL
        for (int k = 0; k + 1 < kWindow; ++k)
          taps[k] = taps[k + 1];
        taps[kWindow - 1] = in[(x + kWindow - 1) * In];
        const Pack<T, kLanes> g = shared.gradient[(y * Side + x) * (Out / kLanes) + lane];
        DDP_UNROLL
        for (int l = 0; l < kLanes; ++l) {
          DDP_UNROLL
          for (int k = 0; k < kWindow; ++k)
            local.weight[k][l] += taps[k] * g.v[l];
          if (In == 1 && sums_bias) local.bias[l] += g.v[l];
        }
      }
    }
  }

  static DDP_HD void add_bias(ThreadIndex at, const Shared& shared, Local& local) {
    DDP_UNROLL
    for (int i = 0; i < kRows * Side; ++i) {
      const Pack<T, kLanes> g = shared.gradient[i * (Out / kLanes) + at.thread];
      DDP_UNROLL
      for (int l = 0; l < kLanes; ++l)
        local.bias[l] += g.v[l];
    }
  }

  static DDP_HD int weight_at(int thread, int kx, int l) {
    const int lane = thread % (Out / kLanes), row = thread % kTeam / (Out / kLanes);  // row: (ky, channel)
    return ((row / In * kWindow + kx) * In + row % In) * Out + lane * kLanes + l;
  }

  /// Writes the teams' sums over the gradient in the block's memory.
  static DDP_HD void put(ThreadIndex at, Shared& shared, const Local& local) {
    if constexpr (Teams > 1) {
      T* to = reinterpret_cast<T*>(shared.gradient) + at.thread / kTeam * (kPart + Out);
      DDP_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        DDP_UNROLL
        for (int kx = 0; kx < kWindow; ++kx)
          to[weight_at(at.thread, kx, l)] = local.weight[kx][l];
        if (at.thread % kTeam < Out / kLanes) to[kPart + at.thread % kTeam * kLanes + l] = local.bias[l];
      }
    }
  }

  static DDP_HD void write(int group, int top, ThreadIndex at, const Shared& shared, const Local& local,
                           const Args& args) {
    T* to = args.parts + static_cast<std::ptrdiff_t>(group) * kSize;
    if constexpr (Teams > 1) {
      const T* sums = reinterpret_cast<const T*>(shared.gradient);
      for (int i = at.thread; i < kPart + Out; i += kThreads) {
        T sum = T(0);
        for (int team = 0; team < Teams; ++team)
          sum += sums[team * (kPart + Out) + i];
        to[i] = sum;
      }
    } else {
      DDP_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        DDP_UNROLL
        for (int kx = 0; kx < kWindow; ++kx)
          to[top * kWindow * In * Out + weight_at(at.thread, kx, l)] = local.weight[kx][l];
        if (top == 0 && at.thread < Out / kLanes) to[kWeights + at.thread * kLanes + l] = local.bias[l];
      }
    }
  }
};

}  // namespace ddp::train::kernels::device
