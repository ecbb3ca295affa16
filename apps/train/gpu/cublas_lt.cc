#include "apps/train/gpu/cuda_runtime.h"

#ifdef DDP_HAVE_CUBLASLT
#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <utility>
#include <vector>
#endif

namespace ddp::train {

#ifdef DDP_HAVE_CUBLASLT

namespace {

const std::string kUsualName = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
constexpr std::size_t kOldest = CUBLAS_VER_MAJOR * std::size_t{10000};
constexpr std::size_t kWorkspace = std::size_t{32} << 20;

std::string version_text(std::size_t version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

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

class CublasLt {
 public:
  Result<> load_functions(LibraryFunctions from, const std::string& path) {
    path_ = path;
    CublasLtFunctions& own = functions_;
    // The version comes first: an old library lacks functions because of its age.
    from.need("cublasLtGetVersion", own.get_version);
    if (from.missing != nullptr) return usage_error(path_, " is not cuBLASLt: cublasLtGetVersion is missing");
    version_ = own.get_version();
    if (version_ < kOldest)
      return usage_error(name(), " is too old; ", version_text(kOldest), " or newer is needed");
    from.need("cublasLtGetStatusName", own.status_name);
    from.need("cublasLtCreate", own.create);
    from.need("cublasLtDestroy", own.destroy);
    from.need("cublasLtMatmulDescCreate", own.make_product);
    from.need("cublasLtMatmulDescDestroy", own.end_product);
    from.need("cublasLtMatmulDescSetAttribute", own.set_product);
    from.need("cublasLtMatrixLayoutCreate", own.make_layout);
    from.need("cublasLtMatrixLayoutDestroy", own.end_layout);
    from.need("cublasLtMatmulPreferenceCreate", own.make_preference);
    from.need("cublasLtMatmulPreferenceDestroy", own.end_preference);
    from.need("cublasLtMatmulPreferenceSetAttribute", own.set_preference);
    from.need("cublasLtMatmulAlgoGetHeuristic", own.choose);
    from.need("cublasLtMatmul", own.multiply);
    if (from.missing != nullptr)
      return usage_error(name(), " lacks ", from.missing, "; check that the file is complete");
    return {};
  }

  const CublasLtFunctions* operator->() const { return &functions_; }
  /// Returns "cuBLASLt 13.0.2 (/usr/local/cuda/lib64/libcublasLt.so.13)".
  std::string name() const { return "cuBLASLt " + version_text(version_) + " (" + path_ + ")"; }
  Result<> check(cublasStatus_t status, const char* call) const {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return error_of(ErrorCode::kSystem, call, ": ", functions_.status_name(status));
  }

 private:
  CublasLtFunctions functions_;
  std::size_t version_ = 0;
  std::string path_;
};

/// Matrices of cuBLASLt are stored by columns, and a matrix stored by rows is its own transpose stored by
/// columns. The product is therefore computed as its transpose: b's is the first factor, a's the second.
struct PlannedProduct {
  const CublasLt& lt;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  explicit PlannedProduct(const CublasLt& of) : lt(of) {}
  PlannedProduct(const PlannedProduct&) = delete;
  PlannedProduct& operator=(const PlannedProduct&) = delete;
  ~PlannedProduct() {
    for (const auto layout : {first, second, result}) {
      if (layout != nullptr) (void)lt->end_layout(layout);
    }
    if (product != nullptr) (void)lt->end_product(product);
  }

  Result<> describe(const ProductShape& shape) {
    const auto type = [](StoredNumber number) {
      return number == StoredNumber::kFp8    ? CUDA_R_8F_E4M3
             : number == StoredNumber::kBf16 ? CUDA_R_16BF
                                             : CUDA_R_32F;
    };
    const auto compute = shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    DDP_TRY(lt.check(lt->make_product(&product, compute, CUDA_R_32F), "cublasLtMatmulDescCreate"));
    const bool first_as_stored = shape.b_column == 1, second_as_stored = shape.a_depth == 1;
    const auto transpose = [&](cublasLtMatmulDescAttributes_t factor, bool as_stored) {
      const cublasOperation_t operation = as_stored ? CUBLAS_OP_N : CUBLAS_OP_T;
      return lt.check(lt->set_product(product, factor, &operation, sizeof operation),
                      "cublasLtMatmulDescSetAttribute");
    };
    DDP_TRY(transpose(CUBLASLT_MATMUL_DESC_TRANSA, first_as_stored));
    DDP_TRY(transpose(CUBLASLT_MATMUL_DESC_TRANSB, second_as_stored));
    const auto lay_out = [&](cublasLtMatrixLayout_t& layout, StoredNumber number, bool as_stored, int rows,
                             int columns, std::ptrdiff_t leading) {
      if (!as_stored) std::swap(rows, columns);
      leading = std::max<std::ptrdiff_t>(leading, rows);  // of a single column, both strides may be 1
      return lt.check(lt->make_layout(&layout, type(number), static_cast<std::uint64_t>(rows),
                                      static_cast<std::uint64_t>(columns), leading),
                      "cublasLtMatrixLayoutCreate");
    };
    DDP_TRY(lay_out(first, shape.factors, first_as_stored, shape.columns, shape.depth,
                    first_as_stored ? shape.b_depth : shape.b_column));
    DDP_TRY(lay_out(second, shape.factors, second_as_stored, shape.depth, shape.rows,
                    second_as_stored ? shape.a_row : shape.a_depth));
    return lay_out(result, shape.result, true, shape.columns, shape.rows, shape.c_row);
  }

  Result<> choose(cublasLtHandle_t handle, std::uint32_t alignment) {
    cublasLtMatmulPreference_t preference = nullptr;
    DDP_TRY(lt.check(lt->make_preference(&preference), "cublasLtMatmulPreferenceCreate"));
    const std::size_t workspace = kWorkspace;
    auto done = lt.check(lt->set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                            sizeof workspace),
                         "cublasLtMatmulPreferenceSetAttribute");
    for (const auto matrix :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      if (done) {
        done = lt.check(lt->set_preference(preference, matrix, &alignment, sizeof alignment),
                        "cublasLtMatmulPreferenceSetAttribute");
      }
    }
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    if (done) {
      done =
          lt.check(lt->choose(handle, product, first, second, result, result, preference, 1, &found, &count),
                   "cublasLtMatmulAlgoGetHeuristic");
    }
    (void)lt->end_preference(preference);
    if (!done) return done;
    if (count == 0)
      return Error{ErrorCode::kSystem, "cublasLtMatmulAlgoGetHeuristic: no algorithm for this shape"};
    algorithm = found.algo;
    return lt.check(found.state, "cublasLtMatmulAlgoGetHeuristic");
  }
};

class CublasLtProducts final : public MatrixProducts {
 public:
  explicit CublasLtProducts(CublasLt library) : lt_(std::move(library)) {}
  ~CublasLtProducts() override {
    plans_.clear();
    // Like the memory, the handle stays if work on the GPU may never end.
    if (handle_ != nullptr && !gpus_are_given_up()) (void)lt_->destroy(handle_);
  }
  CublasLtProducts(const CublasLtProducts&) = delete;
  CublasLtProducts& operator=(const CublasLtProducts&) = delete;

  Result<> open() {
    workspace_ = DDP_TRY(make_device_bytes(kWorkspace));
    return lt_.check(lt_->create(&handle_), "cublasLtCreate");
  }

  std::string name() const override { return lt_.name(); }
  Result<> enqueue(const ProductShape& shape, const void* a, const void* b, void* c,
                   cudaStream_t stream) override {
    constexpr std::uintptr_t kMostAlignment = 256;
    const auto bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
                      reinterpret_cast<std::uintptr_t>(c) | kMostAlignment;
    const auto planned = DDP_TRY(plan({shape, static_cast<std::uint32_t>(bits & ~(bits - 1))}));
    const PlannedProduct& plan = *planned;
    const float one = 1, zero = 0;
    return lt_.check(
        lt_->multiply(handle_, plan.product, &one, b, plan.first, a, plan.second, &zero, c, plan.result, c,
                      plan.result, &plan.algorithm, workspace_.get(), kWorkspace, stream),
        "cublasLtMatmul");
  }

 private:
  /// Addresses are multiples of `alignment`, which decides which kernels can be used.
  struct PlanKey {
    ProductShape shape;
    std::uint32_t alignment;
    auto operator<=>(const PlanKey&) const = default;
  };

  Result<const PlannedProduct*> plan(const PlanKey& key) {
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
    auto plan = std::make_unique<PlannedProduct>(lt_);
    DDP_TRY(plan->describe(key.shape));
    DDP_TRY(plan->choose(handle_, key.alignment));
    return plans_.emplace(key, std::move(plan)).first->second.get();
  }

  CublasLt lt_;
  DeviceBytes workspace_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<PlanKey, std::unique_ptr<PlannedProduct>> plans_;
};

}  // namespace

Result<std::unique_ptr<MatrixProducts>> open_matrix_products(const std::string& file) {
  const char* const named = std::getenv("DDPLAUNCH_CUBLASLT_LIBRARY");
  std::vector<std::string> names{!file.empty()                        ? file
                                 : named != nullptr && *named != '\0' ? named
                                                                      : kUsualName};
  if (names.front() == kUsualName) {
    const std::string wheel = concat("nvidia/cu", CUBLAS_VER_MAJOR, "/lib");
    std::ranges::copy(library_files(kUsualName, {wheel, "nvidia/cublas/lib"}, ::getenv),
                      std::back_inserter(names));
  }
  CublasLt library;
  const auto load = [&](LibraryFunctions from, const std::string& path) {
    return library.load_functions(from, path);
  };
  if (const auto loaded = load_library(names, "cublasLtGetVersion", load); !loaded)
    return usage_error("cuBLASLt cannot be loaded: ", loaded.error().text);
  auto products = std::make_unique<CublasLtProducts>(std::move(library));
  DDP_TRY(products->open());
  return std::unique_ptr<MatrixProducts>(std::move(products));
}

#else

Result<std::unique_ptr<MatrixProducts>> open_matrix_products(const std::string&) {
  return Error{ErrorCode::kUsage, "this build has no cuBLASLt: there was no cublasLt.h"};
}

#endif  // DDP_HAVE_CUBLASLT

}  // namespace ddp::train
