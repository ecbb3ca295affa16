#pragma once

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// The 5 x 5 convolution of kernel_table.h, over the images of a batch. A block computes a band of seven rows
/// of one image, with all output channels or one of `Split` groups of them. A thread computes seven
/// neighboring pixels of some output channels. `Split` makes more blocks of fewer channels, and changes no
/// bit. The block loads input channels sixteen at a time, and weights one row of the window at a time.
/// `Turned`: reads the weights of the opposite convolution [ky][kx][Out][In] turned; the result is the
/// gradient toward that convolution's input. Kernels compute in T and store as From, Weight and To. The
/// moments are those of the stored numbers.
template <class T, int Side, int In, int Out, bool Turned = false, class From = T, class Weight = T,
          class To = T, int Split = 1>
struct Convolution {
  struct Args {
    int batch;
    const From* padded;    ///< [batch][Side + 4][Side + 4][In], borders zero
    const Weight* weight;  ///< [ky][kx][In][Out]
    const Weight* bias;    ///< null: none
    To* output;            ///< [batch][Side][Side][Out]
    T* mean;               ///< [batch * kBands][Out], of each band; null: not computed
    T* squares;            ///< as mean: the sum of squared differences from the mean
  };
  static constexpr int kWindow = 5;
  static constexpr int kPadded = Side + kWindow - 1;
  static constexpr int kRows = 7;
  static constexpr int kRun = 7;
  static constexpr int kBands = Side / kRows;
  static constexpr int kPixels = kRows * Side;  ///< of a band
  static constexpr int kThreads = 112;
  static constexpr int kPlaces = kPixels / kRun;
  static constexpr int kTeam = kThreads / kPlaces;  ///< threads that share the same pixels
  static constexpr int kOut = Out / Split;          ///< channels of a block
  static constexpr int kLanes = kOut / kTeam;       ///< channels of one thread
  static constexpr int kChunk = In < 16 ? In : 16;
  static constexpr int kChunks = In / kChunk;
  // Longer than the row, so that neighboring rows do not begin in the same memory bank.
  static constexpr int kStride = kPadded * kChunk + (kChunk == 1 ? 4 : 8);
  static constexpr int kBand = (kRows + kWindow - 1) * kStride;
  static constexpr int kWeights = kWindow * kWindow * In * Out;
  /// Without this bound, a third fewer blocks run at a time: the compiler takes too many registers, for the
  /// last part and for loads of small numbers.
  static constexpr int kMinBlocks = sizeof(T) == 4 ? 6 : 0;
  static constexpr int kMain = kChunks * kWindow * 2;
  static_assert(kPlaces * kTeam == kThreads && kTeam * kLanes * Split == Out && kChunks * kChunk == In);

  struct Shared {
    T band[kBand > kPlaces* kOut ? kBand : kPlaces* kOut];  // later the sums [kPlaces][kOut]
    Pack<T, kLanes> weight[kWindow * kChunk * kTeam];
    T mean[kOut];
  };
  struct Local {
    T sum[kRun][kLanes];
  };

  static DDP_HD int blocks(const Args& args) { return args.batch * kBands * Split; }
  static DDP_HD int phases(const Args& args) { return kMain + (args.mean ? 4 : 1); }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    if (phase == 0) begin(at, local, args);
    if (phase < kMain) {
      const int chunk = phase / (2 * kWindow), ky = phase / 2 % kWindow;
      if (phase % 2 != 0) {
        add_row(ky, at, shared, local);
        return;
      }
      if (ky == 0) load_band(chunk, at, shared, args);
      load_weights(chunk, ky, at, shared, args);
    } else if (phase == kMain) {
      write(at, shared, local, args);
    } else {
      moments(phase - kMain, at, shared, local, args);
    }
  }

 private:
  /// Returns the first channel of the thread among those of its block, and of the block among all.
  static DDP_HD int own_channel(ThreadIndex at) { return at.thread % kTeam * kLanes; }
  static DDP_HD int block_channel(ThreadIndex at) { return at.block % Split * kOut; }
  static DDP_HD int band_of(ThreadIndex at) { return at.block / Split; }

  static DDP_HD void begin(ThreadIndex at, Local& local, const Args& args) {
    const int channel = block_channel(at) + own_channel(at);
    DDP_UNROLL
    for (int l = 0; l < kLanes; ++l) {
      const T bias = args.bias ? static_cast<T>(args.bias[channel + l]) : T(0);
      DDP_UNROLL
      for (int p = 0; p < kRun; ++p)
        local.sum[p][l] = bias;
    }
  }

  static DDP_HD void load_band(int chunk, ThreadIndex at, Shared& shared, const Args& args) {
    constexpr int kWide = kPadded * kChunk;
    const int image = band_of(at) / kBands, top = band_of(at) % kBands * kRows;
    const From* from = args.padded + (static_cast<std::ptrdiff_t>(image) * kPadded + top) * kPadded * In;
    for (int i = at.thread; i < (kRows + kWindow - 1) * kWide; i += kThreads) {
      const int pixel = i / kChunk, channel = i % kChunk;
      shared.band[i / kWide * kStride + i % kWide] =
          static_cast<T>(from[pixel * In + chunk * kChunk + channel]);
    }
  }

  static DDP_HD void load_weights(int chunk, int ky, ThreadIndex at, Shared& shared, const Args& args) {
    for (int i = at.thread; i < kWindow * kChunk * kOut; i += kThreads) {
      if constexpr (Turned) {  // in memory order, so that neighboring threads read neighboring numbers
        const int in = i % kChunk, out = i / kChunk % kOut, kx = i / (kChunk * kOut);
        const int place = (kWindow - 1 - ky) * kWindow + kWindow - 1 - kx;
        shared.weight[(kx * kChunk + in) * kTeam + out / kLanes].v[out % kLanes] =
            static_cast<T>(args.weight[(place * Out + block_channel(at) + out) * In + chunk * kChunk + in]);
      } else {
        const int out = i % kOut, in = i / kOut % kChunk, kx = i / (kChunk * kOut);
        shared.weight[(kx * kChunk + in) * kTeam + out / kLanes].v[out % kLanes] = static_cast<T>(
            args.weight[((ky * kWindow + kx) * In + chunk * kChunk + in) * Out + block_channel(at) + out]);
      }
    }
  }

  static DDP_HD void add_row(int ky, ThreadIndex at, const Shared& shared, Local& local) {
    const int lane = at.thread % kTeam, place = at.thread / kTeam;
    const int y = place / (Side / kRun), x = place % (Side / kRun) * kRun;
    const T* row = shared.band + (y + ky) * kStride + x * kChunk;
    for (int channel = 0; channel < kChunk; ++channel) {
      T in[kRun + kWindow - 1];
      DDP_UNROLL
      for (int k = 0; k < kRun + kWindow - 1; ++k)
        in[k] = row[k * kChunk + channel];
      DDP_UNROLL
      for (int kx = 0; kx < kWindow; ++kx) {
        const Pack<T, kLanes> weight = shared.weight[(kx * kChunk + channel) * kTeam + lane];
        DDP_UNROLL
        for (int p = 0; p < kRun; ++p) {
          DDP_UNROLL
          for (int l = 0; l < kLanes; ++l)
            local.sum[p][l] += in[p + kx] * weight.v[l];
        }
      }
    }
  }

  static DDP_HD void write(ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    const int channel = own_channel(at), place = at.thread / kTeam;
    const std::ptrdiff_t pixel = static_cast<std::ptrdiff_t>(band_of(at)) * kPixels + place * kRun;
    To* to = args.output + pixel * Out + block_channel(at) + channel;
    DDP_UNROLL
    for (int p = 0; p < kRun; ++p) {
      Pack<To, kLanes> pack;
      DDP_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        pack.v[l] = static_cast<To>(local.sum[p][l]);
        local.sum[p][l] = static_cast<T>(pack.v[l]);
      }
      *reinterpret_cast<Pack<To, kLanes>*>(to + p * Out) = pack;
    }
    DDP_UNROLL
    for (int l = 0; l < kLanes; ++l) {
      T sum = T(0);
      DDP_UNROLL
      for (int p = 0; p < kRun; ++p)
        sum += local.sum[p][l];
      shared.band[place * kOut + channel + l] = sum;
    }
  }

  /// Step 1 computes the means, step 2 each thread's squares, step 3 the sums of the squares.
  static DDP_HD void moments(int step, ThreadIndex at, Shared& shared, const Local& local, const Args& args) {
    if (step == 2) {
      const int channel = own_channel(at), place = at.thread / kTeam;
      DDP_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        const T mean = shared.mean[channel + l];
        T sum = T(0);
        DDP_UNROLL
        for (int p = 0; p < kRun; ++p)
          sum += (local.sum[p][l] - mean) * (local.sum[p][l] - mean);
        shared.band[place * kOut + channel + l] = sum;
      }
      return;
    }
    if (at.thread >= kOut) return;
    T sum = T(0);
    for (int place = 0; place < kPlaces; ++place)
      sum += shared.band[place * kOut + at.thread];
    const std::ptrdiff_t to = static_cast<std::ptrdiff_t>(band_of(at)) * Out + block_channel(at) + at.thread;
    if (step == 1) {
      shared.mean[at.thread] = sum / T(kPixels);
      args.mean[to] = shared.mean[at.thread];
    } else {
      args.squares[to] = sum;
    }
  }
};

}  // namespace ddp::train::kernels::device
