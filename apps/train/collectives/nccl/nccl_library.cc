#include "apps/train/collectives/nccl/nccl_library.h"

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

Error refused(const std::string& text) {
  return usage_error("--comm nccl: ", text);
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
  auto library = std::make_shared<NcclLibrary>();
  const auto loaded =
      load_library(names, "ncclGetVersion", [&](LibraryFunctions from, const std::string& path) {
        library->path_ = path;
        return library->resolve(from);
      });
  if (loaded) return std::shared_ptr<const NcclLibrary>(std::move(library));
  const std::string& errors = loaded.error().text;
  if (names.size() == 1 && loaded.error().code == ErrorCode::kUsage) return refused(errors);
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

Result<> NcclLibrary::resolve(LibraryFunctions from) {
  NcclFunctions& own = functions_;
  // The version comes first: an old library lacks functions because of its age.
  if (!from.find("ncclGetVersion", own.get_version) || own.get_version(&version_) != ncclSuccess)
    return usage_error(path_, " is not NCCL: ncclGetVersion is missing or fails");
  if (version_ < kOldest) {
    return usage_error(path_, " is NCCL ", nccl_version_text(version_), "; ", nccl_version_text(kOldest),
                       " or newer is needed");
  }
  from.need("ncclGetUniqueId", own.get_unique_id);
  from.need("ncclGetErrorString", own.get_error_string);
  from.need("ncclGetLastError", own.get_last_error);
  from.need("ncclCommInitRankConfig", own.init_rank);
  from.need("ncclCommGetAsyncError", own.get_async_error);
  from.need("ncclCommDestroy", own.destroy);
  from.need("ncclCommAbort", own.abort);
  from.need("ncclAllReduce", own.all_reduce);
  from.need("ncclBroadcast", own.broadcast);
  from.need("ncclReduceScatter", own.reduce_scatter);
  from.need("ncclAllGather", own.all_gather);
  from.need("ncclSend", own.send);
  from.need("ncclRecv", own.recv);
  from.need("ncclGroupStart", own.group_start);
  from.need("ncclGroupEnd", own.group_end);
  if (from.missing != nullptr)
    return usage_error(name(), " lacks ", from.missing, "; check that the file is complete");
  from.find("ncclCommSplit", own.split);
  from.find("ncclMemAlloc", own.allocate);
  from.find("ncclMemFree", own.release);
  from.find("ncclCommRegister", own.register_memory);
  from.find("ncclCommDeregister", own.deregister_memory);
  from.find("ncclCommWindowRegister", own.register_window);
  from.find("ncclCommWindowDeregister", own.deregister_window);
  from.find("ncclCommInitRankScalable", own.init_rank_scalable);
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
