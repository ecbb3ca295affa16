// A cuBLASLt that multiplies on the host, in the order of the depth. Products are work of their stream, or of
// the graph that it captures (fake_cuda.h); without a stream they run at once. Handles of its interface are
// pointers to the structures here. FAKE_WITHOUT_PRODUCT leaves one function out.
//   FAKE_CUBLAS_LT_SPOIL=N  the N-th product (from 1) has a wrong element
// As with CUDA, a product that has not run yet must not be captured, nor follow work that waits for other
// ranks.
#include "tests/support/fake_cublas_lt.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda.h"

namespace {

struct Product {
  cublasComputeType_t compute;
  cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
  bool is_loaded = false;
};
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading;
};
struct Preference {
  std::size_t workspace = 0;
  std::uint32_t alignment = 256;  ///< of all matrices
};

FakeCublasLt state;

template <class To, class Handle>
To* as(Handle handle) {
  return reinterpret_cast<To*>(handle);
}

float as_float(const void* data, cudaDataType_t type, std::size_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  if (type == CUDA_R_8F_E4M3) {
    const int bits = static_cast<const std::uint8_t*>(data)[at];
    const float size =
        bits % 128 == 0 ? 0 : std::ldexp(1.0f + static_cast<float>(bits % 8) / 8, bits % 128 / 8 - 7);
    return bits < 128 ? size : -size;
  }
  return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(data)[at]} << 16);
}

/// Returns the elements of a matrix stored by columns, transposed if `turned`, without gaps.
std::vector<float> elements(const void* data, const Layout& layout, bool turned) {
  std::vector<float> all(layout.rows * layout.columns);
  for (std::uint64_t column = 0; column < layout.columns; ++column) {
    for (std::uint64_t row = 0; row < layout.rows; ++row) {
      all[turned ? column + row * layout.columns : row + column * layout.rows] =
          as_float(data, layout.type, row + column * static_cast<std::uint64_t>(layout.leading));
    }
  }
  return all;
}

void write(void* data, const Layout& layout, std::size_t at, float value) {
  if (layout.type == CUDA_R_32F) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<std::uint16_t*>(data)[at] =
        static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  }
}

/// A product in a stream. It holds copies, because a graph outlives the descriptions.
struct Task {
  Product product;
  Layout first, second, to;
  const void *a, *b;
  void* d;

  void operator()() const {
    const std::vector<float> left = elements(a, first, product.first == CUBLAS_OP_T);
    const std::vector<float> right = elements(b, second, product.second == CUBLAS_OP_T);
    const std::uint64_t depth = left.size() / to.rows;
    std::vector<float> sums(to.rows);
    for (std::uint64_t column = 0; column < to.columns; ++column) {
      std::ranges::fill(sums, 0.0f);
      for (std::uint64_t k = 0; k < depth; ++k) {
        const float factor = right[k + column * depth];
        for (std::uint64_t row = 0; row < to.rows; ++row)
          sums[row] += left[row + k * to.rows] * factor;
      }
      for (std::uint64_t row = 0; row < to.rows; ++row)
        write(d, to, row + column * static_cast<std::uint64_t>(to.leading), sums[row]);
    }
    if (++state.made == state.spoil) {
      const std::size_t last = to.rows - 1 + (to.columns - 1) * static_cast<std::uint64_t>(to.leading);
      write(d, to, last, as_float(d, to.type, last) + state.spoiled_by);
    }
  }
};

}  // namespace

extern "C" {

FakeCublasLt* fakeCublasLt() {
  return &state;
}

std::size_t cublasLtGetVersion() {
  return state.version;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED" : "another status";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = as<cublasLtContext>(&state);
  if (const char* const number = std::getenv("FAKE_CUBLAS_LT_SPOIL")) state.spoil = std::atoi(number);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t) {
  *product = as<cublasLtMatmulDescOpaque_t>(new Product{compute});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete as<Product>(product);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t size) {
  auto& to =
      attribute == CUBLASLT_MATMUL_DESC_TRANSA ? as<Product>(product)->first : as<Product>(product)->second;
  if (size != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t leading) {
  *layout = as<cublasLtMatrixLayoutOpaque_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete as<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = as<cublasLtMatmulPreferenceOpaque_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete as<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t size) {
  Preference& to = *as<Preference>(preference);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    std::memcpy(&to.workspace, value, size);
  } else {
    std::memcpy(&to.alignment, value, size);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t preference,
                                              int, cublasLtMatmulHeuristicResult_t* found, int* count) {
  ++state.choices;
  state.workspace = as<Preference>(preference)->workspace;
  state.alignment = as<Preference>(preference)->alignment;
  found[0].algo.data[0] = state.alignment;
  found[0].state = CUBLAS_STATUS_SUCCESS;
  *count = state.knows_shapes ? 1 : 0;
  return CUBLAS_STATUS_SUCCESS;
}

#ifndef FAKE_WITHOUT_PRODUCT
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t of, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void*, const void*, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, std::size_t workspace_size, cudaStream_t stream) {
  if (state.product_status != CUBLAS_STATUS_SUCCESS) return state.product_status;
  Product& product = *as<Product>(of);
  const Layout &first = *as<Layout>(a_layout), &second = *as<Layout>(b_layout), &to = *as<Layout>(d_layout);
  const bool turn_first = product.first == CUBLAS_OP_T, turn_second = product.second == CUBLAS_OP_T;
  const std::uint64_t depth = turn_first ? first.rows : first.columns;
  const auto fits = [](const Layout& layout, bool turned, std::uint64_t rows, std::uint64_t columns) {
    return (turned ? layout.columns : layout.rows) == rows &&
           (turned ? layout.rows : layout.columns) == columns &&
           layout.leading >= static_cast<std::int64_t>(layout.rows);
  };
  if (!fits(first, turn_first, to.rows, depth) || !fits(second, turn_second, depth, to.columns) ||
      !fits(to, false, to.rows, to.columns) || first.type != second.type || algorithm == nullptr ||
      workspace == nullptr || workspace_size < state.workspace)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (*static_cast<const float*>(alpha) != 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (first.type == CUDA_R_8F_E4M3 && (!turn_first || turn_second)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const void* const matrix : {a, b, static_cast<const void*>(d)}) {
    if (reinterpret_cast<std::uintptr_t>(matrix) % algorithm->data[0] != 0)
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!std::exchange(product.is_loaded, true) && stream != nullptr &&
      (ddp::fake_cuda_exchanges() || ddp::fake_cuda_is_capturing(stream))) {
    std::fputs(
        "fake cuBLASLt: a product is loaded in a capture, or while an exchange with other ranks runs\n",
        stderr);
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  state.compute = product.compute;
  state.first = first.type;
  state.second = second.type;
  state.result = to.type;
  ++state.requested;
  const Task task{product, first, second, to, a, b, d};
  if (stream != nullptr)
    return ddp::fake_cuda_call(stream, task) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                            : CUBLAS_STATUS_EXECUTION_FAILED;
  task();
  return CUBLAS_STATUS_SUCCESS;
}
#endif

}  // extern "C"
