#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

/// The last request to the fake cuBLASLt (fake_cublas_lt.cc), and its next answers. Its function
/// fakeCublasLt() returns it.
struct FakeCublasLt {
  cublasComputeType_t compute = CUBLAS_COMPUTE_64F;
  cudaDataType_t first = CUDA_R_8I, second = CUDA_R_8I, result = CUDA_R_8I;
  std::size_t workspace = 0;
  std::uint32_t alignment = 0;
  int choices = 0;                                        ///< calls of the heuristic
  std::size_t version = CUBLAS_VER_MAJOR * 10000 + 3;     ///< the answer of cublasLtGetVersion
  cublasStatus_t product_status = CUBLAS_STATUS_SUCCESS;  ///< of the next products
  bool knows_shapes = true;                               ///< whether the heuristic finds an algorithm
  int requested = 0, made = 0;                            ///< products that were asked for, and that ran
  int spoil = 0;             ///< the number (from 1) of the product whose last element is wrong; 0: none
  float spoiled_by = 0.25f;  ///< is added to that element
};

/// Loads the fake from `file`. Returns its state, as it is at the beginning.
inline FakeCublasLt& fresh_fake_cublas_lt(const char* file) {
  void* const handle = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    std::abort();
  }
  FakeCublasLt& state = *reinterpret_cast<FakeCublasLt* (*)()>(::dlsym(handle, "fakeCublasLt"))();
  state = {};
  return state;
}
