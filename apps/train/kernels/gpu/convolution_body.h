#pragma once

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// The 5 x 5 convolution of kernel_table.h, over the images of a batch. A block computes a band of `Rows`
/// rows of one image, with all output channels or one of `Split` groups of them. A thread computes seven
/// neighboring pixels of some output channels. `Split` makes more blocks of fewer channels, and changes no
/// bit. Bands of more rows load the weights less often, and merge the moments in another order. The block
/// loads a chunk of the input channels at a time, and the next weights while it computes with the present
/// ones.
/// `Turned`: reads the weights of the opposite convolution [ky][kx][Out][In] turned; the result is the
/// gradient toward that convolution's input. Kernels compute in T and store as From, Weight and To. The
/// moments are those of the stored numbers.
template <class T, int Side, int In, int Out, bool Turned = false, class From = T, class Weight = T,
          class To = T, int Split = 1, int Rows = 7>
struct Convolution {
  struct Args {
    int batch;
    const From* padded;    ///< [batch][Side + 4][Side + 4][In], borders zero
    const Weight* weight;  ///< [ky][kx][In][Out]
    const Weight* bias;    ///< null: none
    To* output;            ///< [batch][Side][Side][Out]
    T* mean;               ///< [batch * kBands][Out], of each band; null, as always if Turned: not computed
    T* squares;            ///< as mean: the sum of squared differences from the mean
  };
  static constexpr int kWindow = 5;
  static constexpr int kPadded = Side + kWindow - 1;
  static constexpr int kRun = 7;
  static constexpr int kBands = Side / Rows;
  static constexpr int kPixels = Rows * Side;  ///< of a band
  static constexpr int kThreads = 16 * Rows;
  static constexpr int kOut = Out / Split;  ///< channels of a block
  /// A gradient has few channels, so a block of many threads has whole images, two of them.
  static constexpr int kImages = Turned && kBands == 1 ? 2 : 1;
  static constexpr int kOwnPlaces = kPixels / kRun;  ///< of a band
  static constexpr int kPlaces = kImages * kOwnPlaces;
  static constexpr int kTeam = kThreads / kPlaces;  ///< threads that share the same pixels
  static constexpr int kLanes = kOut / kTeam;       ///< channels of one thread
  static constexpr int kMost = 64 / kImages / static_cast<int>(sizeof(T));  ///< a chunk of 64 bytes
  static constexpr int kChunk = In < kMost ? In : kMost;  ///< input channels in the block's memory
  static constexpr int kChunks = In / kChunk;
  /// Rows of the window whose weights are loaded at a time. There are so few for a single channel that all
  /// are loaded at once.
  static constexpr int kTaps = In == 1 ? kWindow : 1;
  static constexpr int kSteps = kWindow / kTaps;
  static constexpr int kBuffers = kSteps == 1 ? 1 : 2;
  // Longer than the row, so that neighboring rows do not begin in the same memory bank.
  static constexpr int kStride = kPadded * kChunk + 4;
  static constexpr int kBandRows = Rows + kWindow - 1;
  static constexpr int kBand = kBandRows * kStride;
  static constexpr int kWeights = kWindow * kWindow * In * Out;
  /// Without this bound, a third fewer blocks run at a time: the compiler takes too many registers, for the
  /// last part and for loads of small numbers.
  static constexpr int kMinBlocks = sizeof(T) != 4 ? 0 : Rows == 14 ? 3 : 6;
  static constexpr int kMain = kChunks * (1 + kSteps);
  static_assert(kPlaces * kTeam == kThreads && kTeam * kLanes * Split == Out && kChunks * kChunk == In &&
                kBands * Rows == Side && kSteps * kTaps == kWindow);

  struct Shared {
    /// [kImages][kBand], later the sums [kPlaces][kOut]
    alignas(16) T band[kImages * kBand > kPlaces* kOut ? kImages* kBand : kPlaces* kOut];
    /// [kTaps][kWindow][kChunk][kOut]
    Pack<T, kLanes> weight[kBuffers][kTaps * kWindow * kChunk * kTeam];
    T mean[kOut];
  };
  struct Local {
    T sum[kRun][kLanes];
  };

  static DDP_HD int blocks(const Args& args) { return divide_up(args.batch, kImages) * kBands * Split; }
  static DDP_HD int phases(const Args& args) { return kMain + (args.mean ? 4 : 1); }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    if (phase == 0) begin(at, local, args);
    if (phase < kMain) {
      const int chunk = phase / (1 + kSteps), step = phase % (1 + kSteps);
      if (step == 0) load_band(chunk, at, shared, args);
      if (step < kSteps) load_weights(chunk, step, at, shared, args);
      if (step == 0) return;
      DDP_UNROLL
      for (int tap = 0; tap < kTaps; ++tap)
        add_row((step - 1) * kTaps + tap, at, shared, local);
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
  /// Returns the band of the thread's pixels, of the block's first image, among all bands.
  static DDP_HD int first_band(ThreadIndex at) { return at.block / Split * kImages; }
  static DDP_HD int place_of(ThreadIndex at) { return at.thread / kTeam; }

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
    constexpr int kAtOnce = kChunk == 1 || kLoaded<From> < kChunk ? kLoaded<From> : kChunk;
    constexpr int kPacks = kWide / kAtOnce;  ///< of a row
    const int image = first_band(at) / kBands, top = first_band(at) % kBands * Rows;
    const From* from =
        args.padded + (static_cast<std::ptrdiff_t>(image) * kPadded + top) * kPadded * In + chunk * kChunk;
    // If there are several images, their bands are whole images, which lie behind one another.
    const int images = kImages == 1 || image + kImages <= args.batch ? kImages : args.batch - image;
    for (int i = at.thread; i < images * kBandRows * kPacks; i += kThreads) {
      const int row = i / kPacks, place = i % kPacks * kAtOnce;
      load_ahead<kAtOnce>(shared.band + row * kStride + place,
                          from + (row * kPadded + place / kChunk) * In + place % kChunk);
    }
  }

  static DDP_HD void load_weights(int chunk, int step, ThreadIndex at, Shared& shared, const Args& args) {
    T* const to = reinterpret_cast<T*>(shared.weight[step % kBuffers]);
    // Turned weights are read number by number.
    constexpr int kAtOnce = Turned ? 1 : kLoaded<Weight> < kOut ? kLoaded<Weight> : kOut;
    constexpr int kPacks = kOut / kAtOnce;
    for (int i = at.thread; i < kTaps * kWindow * kChunk * kPacks; i += kThreads) {
      if constexpr (Turned) {  // in memory order, so that neighboring threads read neighboring numbers
        const int in = i % kChunk, out = i / kChunk % kOut, tap = i / (kChunk * kOut);
        const int place = kWindow * kWindow - 1 - (step * kTaps * kWindow + tap);
        load_ahead<1>(to + (tap * kChunk + in) * kOut + out,
                      args.weight + (place * Out + block_channel(at) + out) * In + chunk * kChunk + in);
      } else {
        const int out = i % kPacks * kAtOnce, in = i / kPacks % kChunk, tap = i / (kPacks * kChunk);
        const int place = step * kTaps * kWindow + tap;
        load_ahead<kAtOnce>(to + (tap * kChunk + in) * kOut + out,
                            args.weight + (place * In + chunk * kChunk + in) * Out + block_channel(at) + out);
      }
    }
  }

  static DDP_HD void add_row(int ky, ThreadIndex at, const Shared& shared, Local& local) {
    const int lane = at.thread % kTeam, image = place_of(at) / kOwnPlaces, place = place_of(at) % kOwnPlaces;
    const int y = place / (Side / kRun), x = place % (Side / kRun) * kRun;
    const T* row = shared.band + image * kBand + (y + ky) * kStride + x * kChunk;
    const auto* weights = shared.weight[ky / kTaps % kBuffers] + ky % kTaps * kWindow * kChunk * kTeam;
    for (int channel = 0; channel < kChunk; ++channel) {
      T in[kRun + kWindow - 1];
      DDP_UNROLL
      for (int k = 0; k < kRun + kWindow - 1; ++k)
        in[k] = row[k * kChunk + channel];
      DDP_UNROLL
      for (int kx = 0; kx < kWindow; ++kx) {
        const Pack<T, kLanes> weight = weights[(kx * kChunk + channel) * kTeam + lane];
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
    const int channel = own_channel(at), place = place_of(at);
    if (kImages > 1 && first_band(at) + place / kOwnPlaces >= args.batch) return;
    const std::ptrdiff_t pixel = static_cast<std::ptrdiff_t>(first_band(at)) * kPixels + place * kRun;
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
      const int channel = own_channel(at), place = place_of(at);
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
    DDP_UNROLL
    for (int place = 0; place < kPlaces; ++place)
      sum += shared.band[place * kOut + at.thread];
    const std::ptrdiff_t to =
        static_cast<std::ptrdiff_t>(first_band(at)) * Out + block_channel(at) + at.thread;
    if (step == 1) {
      shared.mean[at.thread] = sum / T(kPixels);
      args.mean[to] = shared.mean[at.thread];
    } else {
      args.squares[to] = sum;
    }
  }
};

/// Lets WeightGradient read the gradient of the convolution's output from memory. PooledGradient
/// (norm_pool_body.h) computes it instead.
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
/// ColumnSums adds the groups. A block has a group and `WindowRows` rows of the window. A thread has one
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
  static constexpr int kMinBlocks = sizeof(T) != 4 ? 0 : kSplit == 1 ? 4 : 8;  ///< see device_launch.h
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
