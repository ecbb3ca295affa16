#include "apps/train/collectives/nccl/nccl_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "apps/train/collectives/nccl/nccl_settings.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "base/text.h"

namespace ddp::train {

namespace {

constexpr const char* kUsualName = "libnccl.so.2";
constexpr const char* kVariable = "DDPLAUNCH_NCCL_LIBRARY";

template <class Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
  return function != nullptr;
}

Error refused(const std::string& text) {
  return Error{ErrorCode::kUsage, "--comm nccl: " + text};
}

/// Returns the path of the file that the library was loaded from.
std::string path_of(void* handle, const std::string& otherwise) {
  Dl_info info{};
  void* function = ::dlsym(handle, "ncclGetVersion");
  return function != nullptr && ::dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                                            : otherwise;
}

const char* result_name(ncclResult_t result) {
  switch (static_cast<int>(result)) {
    case 0:
      return "ncclSuccess";
    case 1:
      return "ncclUnhandledCudaError";
    case 2:
      return "ncclSystemError";
    case 3:
      return "ncclInternalError";
    case 4:
      return "ncclInvalidArgument";
    case 5:
      return "ncclInvalidUsage";
    case 6:
      return "ncclRemoteError";
    case 7:
      return "ncclInProgress";
    default:
      return "unknown NCCL error";
  }
}

}  // namespace

std::vector<std::string> nccl_files(const std::function<const char*(const char*)>& get) {
  return library_files(kUsualName, {"nvidia/nccl/lib"}, get);
}

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::open(const std::string& file) {
  std::vector<std::string> names{file.empty() ? kUsualName : file};
  if (file.empty()) std::ranges::copy(nccl_files(::getenv), std::back_inserter(names));
  std::string errors;
  for (const std::string& name : names) {
    void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = ::dlerror();
      errors += (errors.empty() ? "" : "; ") + one_line(why != nullptr ? why : "no reason was given");
      continue;
    }
    auto library = std::make_shared<NcclLibrary>();
    library->path_ = path_of(handle, name);
    const auto resolved = library->resolve(handle);
    if (resolved) return std::shared_ptr<const NcclLibrary>(std::move(library));
    // A library of another place may be newer.
    if (names.size() == 1) return refused(resolved.error().text);
    errors += (errors.empty() ? "" : "; ") + resolved.error().text;
  }
  if (!file.empty())
    return refused(std::string(kVariable) + " names a library that cannot be loaded: " + errors);
  return refused("NCCL cannot be loaded: " + errors +
                 "; install it (package libnccl2, or pip install nvidia-nccl-cu13), or name the file by " +
                 kVariable);
}

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::open() {
  static const auto library = [] {
    const char* file = std::getenv(kVariable);
    return open(file != nullptr ? file : "");
  }();
  return library;
}

Result<> NcclLibrary::resolve(void* handle) {
  NcclFunctions& own = functions_;
  // The version comes first: an old library lacks functions because of its age.
  if (!find(handle, "ncclGetVersion", own.get_version) || own.get_version(&version_) != ncclSuccess)
    return Error{ErrorCode::kUsage, path_ + " is not NCCL: ncclGetVersion is missing or fails"};
  if (version_ < kOldest) {
    return Error{ErrorCode::kUsage, path_ + " is NCCL " + nccl_version_text(version_) + "; " +
                                        nccl_version_text(kOldest) + " or newer is needed"};
  }
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& function) {
    if (!find(handle, name, function) && missing == nullptr) missing = name;
  };
  need("ncclGetUniqueId", own.get_unique_id);
  need("ncclGetErrorString", own.get_error_string);
  need("ncclGetLastError", own.get_last_error);
  need("ncclCommInitRankConfig", own.init_rank);
  need("ncclCommGetAsyncError", own.get_async_error);
  need("ncclCommDestroy", own.destroy);
  need("ncclCommAbort", own.abort);
  need("ncclAllReduce", own.all_reduce);
  need("ncclBroadcast", own.broadcast);
  need("ncclReduceScatter", own.reduce_scatter);
  need("ncclAllGather", own.all_gather);
  if (missing != nullptr)
    return Error{ErrorCode::kUsage, name() + " lacks " + missing + "; check that the file is complete"};
  (void)find(handle, "ncclCommSplit", own.split);
  (void)find(handle, "ncclMemAlloc", own.allocate);
  (void)find(handle, "ncclMemFree", own.release);
  (void)find(handle, "ncclCommRegister", own.register_memory);
  (void)find(handle, "ncclCommDeregister", own.deregister_memory);
  (void)find(handle, "ncclCommWindowRegister", own.register_window);
  (void)find(handle, "ncclCommWindowDeregister", own.deregister_window);
  (void)find(handle, "ncclCommInitRankScalable", own.init_rank_scalable);
  return {};
}

std::string NcclLibrary::name() const {
  return "NCCL " + nccl_version_text(version_) + " (" + path_ + ")";
}

std::string NcclLibrary::text_of(ncclResult_t result, ncclComm_t comm) const {
  std::string text = std::string(result_name(result)) + ": " + functions_.get_error_string(result);
  const char* last = functions_.get_last_error(comm);
  if (last == nullptr || *last == '\0') return text;
  std::string said = last;
  while (!said.empty() && (said.back() == '\n' || said.back() == ' '))
    said.pop_back();
  return text + " (" + one_line(said) + ")";
}

}  // namespace ddp::train
