#pragma once

#include "apps/train/kernels/device/body.h"

namespace ddp::train::kernels::device {

/// The gradients of a convolution's weights and bias, summed over a group of images; sum_body.h adds the
/// groups. A block has a group and `WindowRows` rows of the window; a thread one input channel, four output
/// channels and the five places of one row of the window, and of each band of seven rows of the image every
/// `Teams`-th.
template <class T, int Side, int In, int Out, int WindowRows, int Teams>
struct WeightGradient {
  struct Args {
    int batch;
    const T* padded;    ///< the convolution's input: [batch][Side + 4][Side + 4][In]
    const T* gradient;  ///< of its output, rows `row_stride` elements apart, images `image_stride`
    std::ptrdiff_t image_stride;
    int row_stride;
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
  static constexpr int kMaxGroups = 64;
  static constexpr int kPart = WindowRows * kWindow * In * Out;  ///< weights of one block
  static constexpr int kGradient = kRows * Side * Out;
  static_assert(kSplit * WindowRows == kWindow && kThreads <= 1024);
  static_assert(Teams == 1 || Teams * (kPart + Out) <= kGradient,
                "the teams' sums take the gradient's place");

  struct Shared {
    T in[kInRows * kPadded * In];
    Pack<T, kLanes> gradient[kGradient / kLanes];
  };
  struct Local {
    T weight[kWindow][kLanes];
    T bias[kLanes];
  };

  /// By the batch alone: it decides the order of sums.
  static DDP_HD int images_per_group(const Args& args) { return divide_up(args.batch, kMaxGroups); }
  static DDP_HD int groups(const Args& args) { return divide_up(args.batch, images_per_group(args)); }
  static DDP_HD int blocks(const Args& args) { return groups(args) * kSplit; }
  static DDP_HD int phases(const Args& args) { return 2 * kBands * images_per_group(args) + 2; }

  static DDP_HD void phase(int phase, Place at, Shared& shared, Local& local, const Args& args) {
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
      const int image = group * images_per_group(args) + phase / (2 * kBands);
      if (image >= args.batch) return;
      if (phase % 2 == 0) {
        load(image, phase / 2 % kBands, top, at, shared, args);
      } else {
        add_band(at, shared, local);
      }
    } else if (phase == main) {
      put(at, shared, local);
    } else {
      write(group, top, at, shared, local, args);
    }
  }

 private:
  static DDP_HD void load(int image, int band, int top, Place at, Shared& shared, const Args& args) {
    const int y = band * kRows;
    const T* in = args.padded + (static_cast<std::ptrdiff_t>(image) * kPadded + y + top) * kPadded * In;
    for (int i = at.thread; i < kInRows * kPadded * In; i += kThreads)
      shared.in[i] = in[i];
    const T* gradient = args.gradient + image * args.image_stride + y * args.row_stride;
    for (int i = at.thread; i < kGradient; i += kThreads) {
      const int row = i / (Side * Out), rest = i % (Side * Out);
      shared.gradient[i / kLanes].v[i % kLanes] = gradient[row * args.row_stride + rest];
    }
  }

  static DDP_HD void add_band(Place at, const Shared& shared, Local& local) {
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
          if (sums_bias) local.bias[l] += g.v[l];
        }
      }
    }
  }

  static DDP_HD int weight_at(int thread, int kx, int l) {
    const int lane = thread % (Out / kLanes), row = thread % kTeam / (Out / kLanes);  // row: (ky, channel)
    return ((row / In * kWindow + kx) * In + row % In) * Out + lane * kLanes + l;
  }

  /// The teams' sums to the block's memory, where the gradient is no longer needed.
  static DDP_HD void put(Place at, Shared& shared, const Local& local) {
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

  static DDP_HD void write(int group, int top, Place at, const Shared& shared, const Local& local,
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
