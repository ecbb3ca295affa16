#pragma once

#include "apps/train/kernels/gpu/body.h"

namespace ddp::train::kernels::device {

/// Adds a vector to another one; one thread per element.
template <class T>
struct AddVector {
  struct Args {
    int size;
    T* to;
    const T* from;
  };
  static constexpr int kThreads = 128;
  using Shared = NoMemory;
  using Local = NoMemory;

  static DDP_HD int blocks(const Args& args) { return divide_up(args.size, kThreads); }
  static DDP_HD int phases(const Args&) { return 1; }
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
