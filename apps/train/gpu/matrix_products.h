#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"

namespace ddp::train {

/// c[row][column] = sum over depth of a[row][depth] * b[depth][column], as Gemm computes it (gemm_body.h).
/// In each factor one of the two strides is 1.
struct ProductShape {
  enum class Number { kFloat, kBf16 };
  int rows, columns, depth;
  std::ptrdiff_t a_row, a_depth;
  std::ptrdiff_t b_depth, b_column;
  std::ptrdiff_t c_row;
  Number factors = Number::kFloat;  ///< how a and b are stored; sums are float
  Number result = Number::kFloat;
  bool tf32 = false;  ///< float factors may be rounded to 10 bits of fraction for the tensor cores

  auto operator<=>(const ProductShape&) const = default;
};

/// A library's matrix products on one GPU, which was the current one when they were opened.
class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;
  /// Returns "cuBLASLt 13.0.2 (/usr/local/cuda/lib64/libcublasLt.so.13)".
  virtual std::string name() const = 0;
  /// Puts c = a * b into the stream. Products share a workspace, so all of them belong to one stream. The
  /// first product of a shape chooses and loads its kernels, so it must not be under capture, nor behind
  /// operations that wait for other ranks.
  virtual Result<> enqueue(const ProductShape& shape, const void* a, const void* b, void* c,
                           cudaStream_t stream) = 0;
};

/// Loads cuBLASLt: the file that DDPLAUNCH_CUBLASLT_LIBRARY names, else as CublasLtLibrary::open() finds it.
/// The error says why the own kernels must do.
Result<std::unique_ptr<MatrixProducts>> open_matrix_products();

}  // namespace ddp::train
