#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "apps/train/gpu/cuda_runtime.h"
#include "base/result.h"

namespace ddp::train {

/// cuBLASLt's functions as `train` calls them.
struct CublasLtFunctions {
  decltype(&::cublasLtGetVersion) get_version = nullptr;
  decltype(&::cublasLtGetStatusName) status_name = nullptr;
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtMatmulDescCreate) make_product = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) end_product = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) make_layout = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) end_layout = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) end_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&::cublasLtMatmul) multiply = nullptr;
};

/// libcublasLt of the CUDA release that this program was built with, loaded on demand and never unloaded.
class CublasLtLibrary {
 public:
  /// `file`: its path; empty: as the system's loader finds it, else the first of library_files(). Errors
  /// (kUsage) say what is missing.
  static Result<std::shared_ptr<const CublasLtLibrary>> open(const std::string& file);

  const CublasLtFunctions* operator->() const { return &functions_; }
  const std::string& path() const { return path_; }
  /// Returns "cuBLASLt 13.0.2 (/usr/local/cuda/lib64/libcublasLt.so.13)".
  std::string name() const;
  Result<> check(cublasStatus_t status, const char* call) const;

 private:
  Result<> resolve(void* handle);

  CublasLtFunctions functions_;
  std::size_t version_ = 0;
  std::string path_;
};

class CublasLtProducts final : public MatrixProducts {
 public:
  static constexpr std::size_t kWorkspace = std::size_t{32} << 20;

  static Result<std::unique_ptr<CublasLtProducts>> make(std::shared_ptr<const CublasLtLibrary> library);
  ~CublasLtProducts() override;
  CublasLtProducts(const CublasLtProducts&) = delete;
  CublasLtProducts& operator=(const CublasLtProducts&) = delete;

  std::string name() const override { return library_->name(); }
  Result<> enqueue(const ProductShape& shape, const void* a, const void* b, void* c,
                   cudaStream_t stream) override;

 private:
  struct PlannedProduct;
  /// Addresses are multiples of `alignment`, which decides which kernels can be used.
  struct PlanKey {
    ProductShape shape;
    std::uint32_t alignment;
    auto operator<=>(const PlanKey&) const = default;
  };

  CublasLtProducts(std::shared_ptr<const CublasLtLibrary> library, DeviceBytes workspace);

  std::shared_ptr<const CublasLtLibrary> library_;
  DeviceBytes workspace_;
  cublasLtHandle_t handle_ = nullptr;
  Result<const PlannedProduct*> plan(const PlanKey& key);

  std::map<PlanKey, std::unique_ptr<PlannedProduct>> plans_;
};

}  // namespace ddp::train
