#pragma once

#include <cstdint>

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train {

/// How a matrix of a product is stored. kFp8: e4m3, for factors with a depth stride of 1.
enum class StoredNumber : std::uint8_t { kFloat, kBf16, kFp8 };

}  // namespace ddp::train

namespace ddp::train::kernels::device {

/// The last operation on a product before it is written.
enum class GemmEnd : int {
  kPlain,
  kBias,      ///< plus bias[column]
  kBiasRelu,  ///< and a negative number becomes zero; a nan stays
  kMask,      ///< zero where the mask, of c's shape, is not above zero
};

/// Returns an element of a product after the last operation. `column` is its place in the bias, `at` in the
/// mask.
template <class T, class B>
DDP_HD T finished(T value, GemmEnd end, const B* bias, std::ptrdiff_t column, const B* mask,
                  std::ptrdiff_t at) {
  if (end == GemmEnd::kBias || end == GemmEnd::kBiasRelu) value += static_cast<T>(bias[column]);
  if (end == GemmEnd::kBiasRelu && !(value > T(0))) value = T(0) * value;
  if (end == GemmEnd::kMask && !(static_cast<T>(mask[at]) > T(0))) value = T(0);
  return value;
}

/// c[row][column] = sum over depth of a[row][depth] * b[depth][column], in the order of the depth. Strides
/// allow either factor to be transposed (GemmShape in kernel_table.h). A block computes 64 x 64 elements, a
/// thread 4 x 4. Kernels compute in T; the matrices are stored as A, B and C.
template <class T, class A = T, class B = T, class C = T>
struct Gemm {
  struct Args {
    int rows, columns, depth;
    const A* a;
    std::ptrdiff_t a_row, a_depth;
    const B* b;
    std::ptrdiff_t b_depth, b_column;
    C* c;
    std::ptrdiff_t c_row;
    GemmEnd end;
    const B* bias;
    const B* mask;
  };
  static constexpr int kTile = 64;
  static constexpr int kDepth = 16;
  static constexpr int kLanes = 4;
  static constexpr int kSide = kTile / kLanes;
  static constexpr int kThreads = kSide * kSide;
  struct Shared {
    Pack<T, kLanes> a[kDepth][kSide + 1];
    Pack<T, kLanes> b[kDepth][kSide + 1];
  };
  struct Local {
    T sum[kLanes][kLanes];
  };

  static DDP_HD int wide(const Args& args) { return divide_up(args.columns, kTile); }
  static DDP_HD int blocks(const Args& args) { return divide_up(args.rows, kTile) * wide(args); }
  static DDP_HD int phases(const Args& args) { return 2 * divide_up(args.depth, kDepth) + 1; }

  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local& local, const Args& args) {
    if (phase == 0) {
      DDP_UNROLL
      for (int r = 0; r < kLanes; ++r) {
        DDP_UNROLL
        for (int c = 0; c < kLanes; ++c)
          local.sum[r][c] = T(0);
      }
    }
    const int row = at.block / wide(args) * kTile, column = at.block % wide(args) * kTile;
    if (phase == phases(args) - 1) {
      write(row + at.thread / kSide * kLanes, column + at.thread % kSide * kLanes, local, args);
    } else if (phase % 2 == 0) {
      const int deep = phase / 2 * kDepth;
      load(shared.a, args.a, row, args.rows, args.a_row, deep, args.depth, args.a_depth, at.thread);
      load(shared.b, args.b, column, args.columns, args.b_column, deep, args.depth, args.b_depth, at.thread);
    } else {
      multiply(at.thread / kSide, at.thread % kSide, shared, local);
    }
  }

 private:
  /// Loads a tile; elements outside are zero. Neighboring threads read neighboring numbers.
  template <class From>
  static DDP_HD void load(Pack<T, kLanes> (&to)[kDepth][kSide + 1], const From* from, int begin, int end,
                          std::ptrdiff_t stride, int deep, int depth, std::ptrdiff_t depth_stride,
                          int thread) {
    for (int i = thread; i < kTile * kDepth; i += kThreads) {
      const int d = depth_stride == 1 ? i % kDepth : i / kTile;
      const int k = depth_stride == 1 ? i / kDepth : i % kTile;
      const bool inside = begin + k < end && deep + d < depth;
      to[d][k / kLanes].v[k % kLanes] =
          inside ? static_cast<T>(from[(begin + k) * stride + (deep + d) * depth_stride]) : T(0);
    }
  }

  static DDP_HD void multiply(int row, int column, const Shared& shared, Local& local) {
    DDP_UNROLL
    for (int d = 0; d < kDepth; ++d) {
      const Pack<T, kLanes> a = shared.a[d][row], b = shared.b[d][column];
      DDP_UNROLL
      for (int r = 0; r < kLanes; ++r) {
        DDP_UNROLL
        for (int c = 0; c < kLanes; ++c)
          local.sum[r][c] += a.v[r] * b.v[c];
      }
    }
  }

  static DDP_HD void write(int row, int column, const Local& local, const Args& args) {
    DDP_UNROLL
    for (int r = 0; r < kLanes; ++r) {
      DDP_UNROLL
      for (int c = 0; c < kLanes; ++c) {
        if (row + r >= args.rows || column + c >= args.columns) continue;
        const std::ptrdiff_t to = (row + r) * args.c_row + column + c;
        args.c[to] =
            static_cast<C>(finished(local.sum[r][c], args.end, args.bias, column + c, args.mask, to));
      }
    }
  }
};

/// The last operation on a product that a library has written to c, which has no gaps.
template <class T, class B = T, class C = T>
struct FinishProduct : OnePhase {
  struct Args {
    int rows, columns;
    C* c;
    GemmEnd end;
    const B* bias;
    const B* mask;
  };
  static constexpr int kThreads = 256;
  static constexpr int kEach = 4;  ///< elements of a thread

  static DDP_HD int blocks(const Args& args) { return divide_up(args.rows * args.columns, kThreads * kEach); }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    DDP_UNROLL
    for (int k = 0; k < kEach; ++k) {
      const int i = (at.block * kEach + k) * kThreads + at.thread;
      if (i >= args.rows * args.columns) return;
      args.c[i] = static_cast<C>(
          finished(static_cast<T>(args.c[i]), args.end, args.bias, i % args.columns, args.mask, i));
    }
  }
};

/// Adds a vector to another one; one thread per element.
template <class T>
struct AddVector : OnePhase {
  struct Args {
    int size;
    T* to;
    const T* from;
  };
  static constexpr int kThreads = 128;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.size, kThreads); }
  static DDP_HD void phase(int, ThreadIndex at, Shared&, Local&, const Args& args) {
    const int i = at.block * kThreads + at.thread;
    if (i < args.size) args.to[i] += args.from[i];
  }
};

/// Sums the rows of a matrix [rows][columns] that is stored as S: the parts of a gradient, or the gradient of
/// a bias. A block has 32 columns; eight threads share a column, each with every eighth row.
template <class T, class S = T>
struct ColumnSums {
  struct Args {
    int rows;
    int columns;
    const S* from;
    T* to;
  };
  static constexpr int kColumns = 32;
  static constexpr int kTeam = 8;
  static constexpr int kThreads = kColumns * kTeam;
  static constexpr int kAtOnce = 16;
  struct Shared {
    T sums[kTeam][kColumns];
  };
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.columns, kColumns); }
  static DDP_HD int phases(const Args&) { return 2; }
  static DDP_HD void phase(int phase, ThreadIndex at, Shared& shared, Local&, const Args& args) {
    const int lane = at.thread % kColumns, member = at.thread / kColumns;
    const int column = at.block * kColumns + lane;
    if (column >= args.columns || (phase == 1 && member != 0)) return;
    T sum = T(0);
    if (phase == 0) {
      for (int begin = member; begin < args.rows; begin += kTeam * kAtOnce) {
        S some[kAtOnce];  // all loads start before the first addition
        DDP_UNROLL
        for (int k = 0; k < kAtOnce; ++k) {
          const std::ptrdiff_t row = begin + k * kTeam;
          some[k] = row < args.rows ? args.from[row * args.columns + column] : static_cast<S>(T(0));
        }
        DDP_UNROLL
        for (int k = 0; k < kAtOnce; ++k)
          sum += static_cast<T>(some[k]);
      }
      shared.sums[member][lane] = sum;
    } else {
      for (int i = 0; i < kTeam; ++i)
        sum += shared.sums[i][lane];
      args.to[column] = sum;
    }
  }
};

}  // namespace ddp::train::kernels::device
