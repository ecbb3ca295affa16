#pragma once

#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/collectives/nccl/nccl_world.h"
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
  /// Since 2.19 (NcclComms::share_memory).
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

/// One rank's NCCL communicators, and every wait for them. They do not block, so that a lost peer, a deadline
/// or a revocation ends any wait. One failure ends them all, so they are aborted together, each on its own
/// thread: NCCL's abort may hang, and one may wait for another. An abort that takes longer than `end_timeout`
/// is abandoned with its thread and memory, and the GPUs are given up (decision 0019).
///
/// One thread. Errors as in Communicator, and kUsage, kSystem and kInternal if NCCL reports them.
class NcclComms {
 public:
  /// Ranks that share one meeting point, if the library supports several.
  static constexpr int kRanksPerRoot = 128;

  /// Uses GPU number `gpu`, with a stream of its own.
  static Result<std::shared_ptr<NcclComms>> make(std::shared_ptr<const NcclLibrary> library, int gpu,
                                                 WorldConfig config);
  ~NcclComms();
  NcclComms(const NcclComms&) = delete;
  NcclComms& operator=(const NcclComms&) = delete;

  /// Opens a communicator of `size` ranks that all call this. Its ids are made for it and published in the
  /// directory under the group's name. An id serves once: the directory must be that of this attempt.
  Result<ncclComm_t> open(PeerDirectory& directory, const std::string& group, int rank, int size);
  /// Splits a communicator into parts: ranks of one color, in the order of their keys. All its ranks call
  /// this; those with a color below 0 get null. Fails with kUsage if the library has no ncclCommSplit.
  Result<ncclComm_t> split(ncclComm_t whole, int color, int key);

  using NcclCall = std::function<ncclResult_t(const NcclFunctions&)>;
  /// Makes NCCL put an operation into a stream, and waits until it is enqueued.
  Result<> call(ncclComm_t comm, std::string_view operation, const NcclCall& call);
  /// Waits until done() returns true. Errors of done() are the device's.
  Result<> wait(ncclComm_t comm, std::string_view operation, const std::function<Result<bool>()>& done);
  /// Passes on the device's answer. A failure ends the communicators like any other.
  template <class T>
  Result<T> checked(Result<T> answer, std::string_view operation) {
    if (failed_) return *failed_;
    if (!answer) return fail(answer.error().code, answer.error().text, operation);
    return answer;
  }

  /// Graphs that hold operations of the communicators, as in Communicator.
  void on_end(GraphOwner owner) { owners_.push_back(std::move(owner)); }

  /// Bytes of the host's buffer that go to the device before, or come back after.
  struct BufferRange {
    std::size_t offset = 0;
    std::size_t size = 0;
  };
  using StagedCall = std::function<ncclResult_t(const NcclFunctions&, std::byte* device, cudaStream_t)>;
  /// Makes an operation on a copy of `host` in GPU memory, and waits for it and the copies.
  Result<> staged(ncclComm_t comm, std::string_view operation, std::span<std::byte> host, BufferRange up,
                  BufferRange down, const StagedCall& enqueue);
  /// Returns memory that NCCL allocated, zeroed and registered with the communicator; valid as long as the
  /// comms. If the machine supports it, NCCL reads and writes it without copies through its own buffers.
  /// Empty: there is none. If NCCL cannot register memory, this is reported on stderr once.
  DeviceMemory share_memory(ncclComm_t comm, std::size_t bytes);

 private:
  struct Resources;
  struct CommunicatorEndings;
  struct Registration {
    ncclComm_t comm;
    void* handle;
    bool is_window;
    void* block;
  };

  NcclComms(std::shared_ptr<const NcclLibrary> library, int gpu, WorldConfig config);
  Result<> take_gpu() const;
  Result<std::byte*> staging(std::size_t bytes);
  Result<std::span<std::byte>> allocate(ncclComm_t comm, std::size_t bytes);
  bool register_alone(ncclComm_t comm, std::span<std::byte> block);
  bool all_agree(ncclComm_t comm, bool mine);

  Result<std::vector<ncclUniqueId>> meet(PeerDirectory& directory, const std::string& group, int rank,
                                         int size);
  Result<> settle(ncclComm_t comm, ncclResult_t result, std::string_view operation,
                  std::chrono::milliseconds timeout);
  Error fail(ErrorCode code, const std::string& reason, std::string_view operation,
             const std::string& advice = "");
  Error failed_call(ncclComm_t comm, ncclResult_t result, std::string_view operation);
  bool end_all(bool abort);
  bool drop_graphs(std::chrono::steady_clock::time_point deadline);
  std::vector<Registration> take_registrations(ncclComm_t comm, bool abort);
  std::shared_ptr<CommunicatorEndings> begin_endings(bool abort);

  std::shared_ptr<const NcclLibrary> library_;
  int gpu_;
  WorldConfig config_;
  std::shared_ptr<Resources> held_;
  std::vector<GraphOwner> owners_;
  bool said_ = false;  ///< that memory cannot be registered
  bool stuck_ = false;
  std::optional<Error> failed_;
};

}  // namespace ddp::train
