#pragma once

#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/gpu/cuda_runtime.h"
#include "base/result.h"

namespace ddp::train {

/// NCCL's functions as `train` calls them. Those of the second half are declared here and not taken from
/// nccl.h, so that a build with an old header knows the newer ones. They are null if the library is too old
/// for them.
struct NcclFunctions {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&::ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;

  /// Since NCCL 2.18.
  ncclResult_t (*split)(ncclComm_t comm, int color, int key, ncclComm_t* part,
                        ncclConfig_t* config) = nullptr;
  /// Since 2.19 (NcclMemory).
  ncclResult_t (*allocate)(void** data, std::size_t bytes) = nullptr;
  ncclResult_t (*release)(void* data) = nullptr;
  ncclResult_t (*register_memory)(ncclComm_t comm, void* data, std::size_t bytes, void** handle) = nullptr;
  ncclResult_t (*deregister_memory)(ncclComm_t comm, void* handle) = nullptr;
  /// Since 2.27. A non-blocking communicator writes `window` later.
  ncclResult_t (*register_window)(ncclComm_t comm, void* data, std::size_t bytes, void** window,
                                  int flags) = nullptr;
  ncclResult_t (*deregister_window)(ncclComm_t comm, void* window) = nullptr;
  /// Since 2.23.
  ncclResult_t (*init_rank_scalable)(ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId* id,
                                     ncclConfig_t* config) = nullptr;
};

/// libnccl.so.2, loaded on demand, so that the program starts without it. It stays loaded, since NCCL has
/// threads of its own.
class NcclLibrary {
 public:
  static constexpr int kOldest = 21900;  ///< 2.19, as ncclGetVersion counts

  /// `file`: its path or name; empty: libnccl.so.2 as the system's loader finds it, else the first of
  /// nccl_files(). Errors (kUsage) say what is missing.
  static Result<std::shared_ptr<const NcclLibrary>> open(const std::string& file);
  /// Opens the library that DDPLAUNCH_NCCL_LIBRARY names, once per process.
  static Result<std::shared_ptr<const NcclLibrary>> open();

  const NcclFunctions* operator->() const { return &functions_; }
  int version() const { return version_; }
  const std::string& path() const { return path_; }
  /// Returns "NCCL 2.28.9 (/usr/lib/x86_64-linux-gnu/libnccl.so.2)".
  std::string name() const;
  /// Returns "ncclRemoteError: remote process exited or there was a network error", and NCCL's last error
  /// text.
  std::string text_of(ncclResult_t result, ncclComm_t comm) const;

 private:
  Result<> resolve(LibraryFunctions from);

  NcclFunctions functions_;
  int version_ = 0;
  std::string path_;
};

/// Returns the libnccl.so.2 files outside the loader's paths (library_files()); the wheel is nvidia.nccl.
std::vector<std::string> nccl_files(const std::function<const char*(const char*)>& get);

}  // namespace ddp::train
