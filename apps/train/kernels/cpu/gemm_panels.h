#pragma once

#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/cpu/vector.h"

namespace ddp::train::kernels {
namespace {

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

}  // namespace
}  // namespace ddp::train::kernels
