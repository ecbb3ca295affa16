#pragma once

#include <cublasLt.h>

/// The last request to the fake cuBLASLt (fake_cublas_lt.cc), and its next answers. Its function
/// fakeCublasLt() returns it.
struct FakeCublasLt {
  cublasComputeType_t compute = CUBLAS_COMPUTE_64F;
  cudaDataType_t first = CUDA_R_8I, second = CUDA_R_8I, result = CUDA_R_8I;
  std::size_t workspace = 0;
  int choices = 0;                                        ///< calls of the heuristic
  std::size_t version = CUBLAS_VER_MAJOR * 10000 + 3;     ///< the answer of cublasLtGetVersion
  cublasStatus_t product_status = CUBLAS_STATUS_SUCCESS;  ///< of the next products
  bool knows_shapes = true;                               ///< whether the heuristic finds an algorithm
};
