#include "apps/train/gpu/matrix_products.h"

#ifdef DDP_HAVE_CUBLASLT

#include <cstdlib>

#include "apps/train/gpu/cublas_lt.h"

namespace ddp::train {

Result<std::unique_ptr<MatrixProducts>> open_matrix_products() {
  const char* const file = std::getenv("DDPLAUNCH_CUBLASLT_LIBRARY");
  auto library = CublasLtLibrary::open(file != nullptr ? file : "");
  if (!library) return library.error();
  auto products = CublasLtProducts::make(std::move(*library));
  if (!products) return products.error();
  return std::unique_ptr<MatrixProducts>(std::move(*products));
}

}  // namespace ddp::train

#else

namespace ddp::train {

Result<std::unique_ptr<MatrixProducts>> open_matrix_products() {
  return Error{ErrorCode::kUsage, "this build has no cuBLASLt: there was no cublasLt.h"};
}

}  // namespace ddp::train

#endif  // DDP_HAVE_CUBLASLT
