#pragma once

#include "apps/train/kernels/cpu/gemm_panels.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/kernels/cpu/vector.h"

namespace ddp::train::kernels {
namespace {

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
}  // namespace ddp::train::kernels
