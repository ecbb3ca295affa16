#include "apps/train/gpu/cuda_runtime.h"

#ifdef DDP_HAVE_CUBLASLT
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "apps/train/gpu/cublas_lt.h"
#include "base/text.h"
#endif

namespace ddp::train {

#ifdef DDP_HAVE_CUBLASLT

namespace {

const std::string kUsualName = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
constexpr std::size_t kOldest = CUBLAS_VER_MAJOR * std::size_t{10000};

std::string version_text(std::size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Result<std::shared_ptr<const CublasLtLibrary>> CublasLtLibrary::open(const std::string& file) {
  std::vector<std::string> names{file.empty() ? kUsualName : file};
  if (file.empty()) {
    const std::string wheel = "nvidia/cu" + std::to_string(CUBLAS_VER_MAJOR) + "/lib";
    std::ranges::copy(library_files(kUsualName, {wheel, "nvidia/cublas/lib"}, ::getenv),
                      std::back_inserter(names));
  }
  std::string errors;
  for (const std::string& name : names) {
    std::string error;
    if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
      auto library = std::make_shared<CublasLtLibrary>();
      library->path_ = name;
      const auto resolved = library->resolve(handle);
      if (resolved) return std::shared_ptr<const CublasLtLibrary>(std::move(library));
      error = resolved.error().text;
    } else {
      const char* why = ::dlerror();
      error = one_line(why != nullptr ? why : "no reason was given");
    }
    errors += (errors.empty() ? "" : "; ") + error;
  }
  return Error{ErrorCode::kUsage, "cuBLASLt cannot be loaded: " + errors};
}

Result<> CublasLtLibrary::resolve(void* handle) {
  const char* missing = nullptr;
  const auto need = [&]<class Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  CublasLtFunctions& own = functions_;
  // The version comes first: an old library lacks functions because of its age.
  need("cublasLtGetVersion", own.get_version);
  if (missing != nullptr)
    return Error{ErrorCode::kUsage, path_ + " is not cuBLASLt: cublasLtGetVersion is missing"};
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(own.get_version), &info) != 0 && info.dli_fname != nullptr)
    path_ = info.dli_fname;
  version_ = own.get_version();
  if (version_ < kOldest)
    return Error{ErrorCode::kUsage, name() + " is too old; " + version_text(kOldest) + " or newer is needed"};
  need("cublasLtGetStatusName", own.status_name);
  need("cublasLtCreate", own.create);
  need("cublasLtDestroy", own.destroy);
  need("cublasLtMatmulDescCreate", own.make_product);
  need("cublasLtMatmulDescDestroy", own.end_product);
  need("cublasLtMatmulDescSetAttribute", own.set_product);
  need("cublasLtMatrixLayoutCreate", own.make_layout);
  need("cublasLtMatrixLayoutDestroy", own.end_layout);
  need("cublasLtMatmulPreferenceCreate", own.make_preference);
  need("cublasLtMatmulPreferenceDestroy", own.end_preference);
  need("cublasLtMatmulPreferenceSetAttribute", own.set_preference);
  need("cublasLtMatmulAlgoGetHeuristic", own.choose);
  need("cublasLtMatmul", own.multiply);
  if (missing != nullptr)
    return Error{ErrorCode::kUsage, name() + " lacks " + missing + "; check that the file is complete"};
  return {};
}

std::string CublasLtLibrary::name() const {
  return "cuBLASLt " + version_text(version_) + " (" + path_ + ")";
}

Result<> CublasLtLibrary::check(cublasStatus_t status, const char* call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Error{ErrorCode::kSystem, std::string(call) + ": " + functions_.status_name(status)};
}

/// Matrices of cuBLASLt are stored by columns, and a matrix stored by rows is its own transpose stored by
/// columns. The product is therefore computed as its transpose: b's is the first factor, a's the second.
struct CublasLtProducts::PlannedProduct {
  std::shared_ptr<const CublasLtLibrary> library;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  explicit PlannedProduct(std::shared_ptr<const CublasLtLibrary> of) : library(std::move(of)) {}
  PlannedProduct(const PlannedProduct&) = delete;
  PlannedProduct& operator=(const PlannedProduct&) = delete;
  ~PlannedProduct() {
    for (const auto layout : {first, second, result}) {
      if (layout != nullptr) (void)(*library)->end_layout(layout);
    }
    if (product != nullptr) (void)(*library)->end_product(product);
  }

  Result<> describe(const ProductShape& shape) {
    const auto type = [](ProductShape::Number number) {
      return number == ProductShape::Number::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
    };
    const auto compute = shape.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const CublasLtLibrary& lt = *library;
    DDP_TRY(lt.check(lt->make_product(&product, compute, CUDA_R_32F), "cublasLtMatmulDescCreate"));
    const bool first_as_stored = shape.b_column == 1, second_as_stored = shape.a_depth == 1;
    const auto transpose = [&](cublasLtMatmulDescAttributes_t factor, bool as_stored) {
      const cublasOperation_t operation = as_stored ? CUBLAS_OP_N : CUBLAS_OP_T;
      return lt.check(lt->set_product(product, factor, &operation, sizeof operation),
                      "cublasLtMatmulDescSetAttribute");
    };
    DDP_TRY(transpose(CUBLASLT_MATMUL_DESC_TRANSA, first_as_stored));
    DDP_TRY(transpose(CUBLASLT_MATMUL_DESC_TRANSB, second_as_stored));
    const auto lay_out = [&](cublasLtMatrixLayout_t& layout, ProductShape::Number number, bool as_stored,
                             int rows, int columns, std::ptrdiff_t leading) {
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
    const CublasLtLibrary& lt = *library;
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

CublasLtProducts::CublasLtProducts(std::shared_ptr<const CublasLtLibrary> library, DeviceBytes workspace)
    : library_(std::move(library)), workspace_(std::move(workspace)) {}

CublasLtProducts::~CublasLtProducts() {
  plans_.clear();
  // Like the memory, the handle stays if work on the GPU may never end.
  if (handle_ != nullptr && !gpus_are_given_up()) (void)(*library_)->destroy(handle_);
}

Result<std::unique_ptr<CublasLtProducts>> CublasLtProducts::make(
    std::shared_ptr<const CublasLtLibrary> library) {
  auto workspace = DDP_TRY(make_device_bytes(kWorkspace));
  std::unique_ptr<CublasLtProducts> products(new CublasLtProducts(std::move(library), std::move(workspace)));
  const CublasLtLibrary& lt = *products->library_;
  DDP_TRY(lt.check(lt->create(&products->handle_), "cublasLtCreate"));
  return products;
}

Result<const CublasLtProducts::PlannedProduct*> CublasLtProducts::plan(const PlanKey& key) {
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
  auto plan = std::make_unique<PlannedProduct>(library_);
  DDP_TRY(plan->describe(key.shape));
  DDP_TRY(plan->choose(handle_, key.alignment));
  return plans_.emplace(key, std::move(plan)).first->second.get();
}

Result<> CublasLtProducts::enqueue(const ProductShape& shape, const void* a, const void* b, void* c,
                                   cudaStream_t stream) {
  constexpr std::uintptr_t kMostAlignment = 256;
  const auto bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
                    reinterpret_cast<std::uintptr_t>(c) | kMostAlignment;
  const auto planned = DDP_TRY(plan({shape, static_cast<std::uint32_t>(bits & ~(bits - 1))}));
  const PlannedProduct& plan = *planned;
  const float one = 1, zero = 0;
  return library_->check(
      (*library_)->multiply(handle_, plan.product, &one, b, plan.first, a, plan.second, &zero, c, plan.result,
                            c, plan.result, &plan.algorithm, workspace_.get(), kWorkspace, stream),
      "cublasLtMatmul");
}

Result<std::unique_ptr<MatrixProducts>> open_matrix_products() {
  const char* const file = std::getenv("DDPLAUNCH_CUBLASLT_LIBRARY");
  auto library = DDP_TRY(CublasLtLibrary::open(file != nullptr ? file : ""));
  auto products = DDP_TRY(CublasLtProducts::make(std::move(library)));
  return std::unique_ptr<MatrixProducts>(std::move(products));
}

#else

Result<std::unique_ptr<MatrixProducts>> open_matrix_products() {
  return Error{ErrorCode::kUsage, "this build has no cuBLASLt: there was no cublasLt.h"};
}

#endif  // DDP_HAVE_CUBLASLT

}  // namespace ddp::train
