#include "apps/train/gpu/cuda_check.h"

#include <string>
#include <string_view>

namespace ddp::train {

namespace {

std::string words_of(cudaError_t answer) {
  return std::string(cudaGetErrorName(answer)) + " (" + cudaGetErrorString(answer) + ")";
}

}  // namespace

Result<> cuda_check(cudaError_t answer, const char* call, std::source_location where) {
  if (answer == cudaSuccess) return {};
  const std::string_view path = where.file_name();
  const std::string_view file = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  return Error{ErrorCode::kSystem, std::string(file) + ":" + std::to_string(where.line()) + ": " + call +
                                       ": " + words_of(answer)};
}

Result<bool> cuda_is_done(cudaError_t answer, const char* call, std::source_location where) {
  if (answer == cudaErrorNotReady) {
    (void)cudaGetLastError();  // the next launch would find it, and be taken for refused
    return false;
  }
  const auto checked = cuda_check(answer, call, where);
  return checked ? Result<bool>(true) : checked.error();
}

Result<int> count_gpus() {
  int count = 0;
  const cudaError_t answer = cudaGetDeviceCount(&count);
  if (answer == cudaSuccess && count > 0) return count;
  (void)cudaGetLastError();  // it would be found again by the next call that looks
  return Error{ErrorCode::kSystem,
               "cudaGetDeviceCount said " + words_of(answer == cudaSuccess ? cudaErrorNoDevice : answer)};
}

}  // namespace ddp::train
