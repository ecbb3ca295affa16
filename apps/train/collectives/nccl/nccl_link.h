#pragma once

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
#include "apps/train/collectives/nccl/nccl_library.h"
#include "base/result.h"

namespace ddp::train {

/// The GPU of one rank as NCCL's communicators use it: memory and a stream of its own. Tests use plain memory
/// instead. One thread, except for take().
class NcclDevice {
 public:
  virtual ~NcclDevice() = default;

  /// Returns "GPU 0 (NVIDIA H100)".
  virtual std::string name() const = 0;
  /// Makes it the calling thread's device.
  virtual Result<> take() = 0;
  /// Returns a cudaStream_t.
  virtual void* stream() = 0;
  virtual Result<std::byte*> allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) = 0;
  /// Requires an idle stream. The memory is zero on return.
  virtual Result<> zero(std::byte* data, std::size_t bytes) = 0;
  /// Copies in the stream's order. The host's memory may be reused on return.
  virtual Result<> to_device(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  /// Requires an idle stream. The copy is complete on return. kTimeout: the GPU does not finish the copy.
  virtual Result<> to_host(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  /// Returns true if all work in `stream` is done. Never blocks. Errors of the work appear here.
  virtual Result<bool> is_idle(void* stream) = 0;
};

Result<std::unique_ptr<NcclDevice>> open_cuda_device(int gpu);

/// Memory that NCCL allocated, registered with a communicator. If the machine supports it, NCCL reads and
/// writes this memory without copies through its own buffers. One thread. NcclLink makes registrations of all
/// ranks together (windows).
class NcclMemory {
 public:
  NcclMemory(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<NcclDevice> device)
      : library_(std::move(library)), device_(std::move(device)) {}
  /// Frees all memory. The communicators and all work that uses the memory must have ended: unlike cudaFree,
  /// ncclMemFree does not wait for that work.
  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  /// Returns whether the library can allocate and register memory.
  bool is_possible() const;
  /// Returns zeroed memory whose size is a multiple of a window's alignment. Fails with kSystem and NCCL's
  /// text.
  Result<std::span<std::byte>> allocate(ncclComm_t comm, std::size_t bytes);
  /// Calls ncclCommRegister, which asks no other rank. False: NCCL cannot, which is reported on stderr once.
  bool register_alone(ncclComm_t comm, std::span<std::byte> block);
  /// Undoes the last successful register_alone().
  void take_back(ncclComm_t comm);
  /// Call before all ranks make a window, and after they have made it. Null: NCCL has made none.
  void begin_window(ncclComm_t comm, std::span<std::byte> block) {
    registrations_.push_back({comm, nullptr, true, block.data()});
  }
  void end_window(void* window) {
    registrations_.back().handle = window;
    if (window == nullptr) registrations_.pop_back();
  }

  struct Registration {
    ncclComm_t comm;
    void* handle;
    bool is_window;
    void* block;
  };
  /// Returns what must be deregistered before the communicator is destroyed.
  std::vector<Registration> take_registrations(ncclComm_t comm);
  /// Forgets the registrations of a communicator that is aborted. NCCL ends those of ncclCommRegister itself,
  /// but not windows, so their memory stays until the process ends.
  void leave_registrations(ncclComm_t comm);

 private:
  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<NcclDevice> device_;
  std::vector<void*> blocks_;
  std::vector<Registration> registrations_;
  bool said_ = false;
};

struct NcclLinkConfig : GroupConfig {
  std::chrono::milliseconds end_timeout{5'000};  ///< for NCCL to abort or to free its memory
  bool windows = true;                           ///< share_memory() may make symmetric windows
  std::string start_advice = {};                 ///< ends the text of an error of NCCL at its start
};

/// One rank's NCCL communicators, and every wait for them. They do not block, so that a lost peer, a deadline
/// or a revocation ends any wait. One failure ends them all, so they are aborted together, each on its own
/// thread: NCCL's abort may hang, and one may wait for another. An abort that takes longer than `end_timeout`
/// is abandoned with its thread and memory, and the GPUs are given up. nccl_is_stuck() then returns true.
///
/// One thread. Errors as in Communicator, and kUsage, kSystem and kInternal if NCCL reports them.
class NcclLink {
 public:
  /// Ranks that share one meeting point, if the library supports several.
  static constexpr int kRanksPerRoot = 128;

  NcclLink(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<NcclDevice> device,
           NcclLinkConfig config);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

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
  /// Passes on the device's answer. A failure ends the link like any other.
  template <class T>
  Result<T> checked(Result<T> answer, std::string_view operation) {
    if (failed_) return *failed_;
    if (!answer) return fail(answer.error().code, answer.error().text, operation);
    return answer;
  }

  /// Graphs that hold operations of the communicators, as in Communicator.
  void on_end(GraphOwner owner) { owners_.push_back(std::move(owner)); }

  /// Returns device memory of at least `bytes` bytes, for one operation. The next call may move it.
  Result<std::byte*> staging(std::size_t bytes);
  /// Returns memory that is zeroed and registered with the communicator, valid as long as the link. Empty:
  /// there is none (NcclMemory).
  DeviceMemory share_memory(ncclComm_t comm, std::size_t bytes);
  NcclDevice& device() { return *device_; }

 private:
  struct Slots;
  struct CommunicatorEndings;

  bool all_agree(ncclComm_t comm, bool mine);

  Result<std::vector<ncclUniqueId>> meet(PeerDirectory& directory, const std::string& group, int rank,
                                         int size);
  Result<> settle(ncclComm_t comm, ncclResult_t result, std::string_view operation,
                  std::chrono::milliseconds timeout);
  Error fail(ErrorCode code, const std::string& reason, std::string_view operation,
             const std::string& advice = "");
  Error failed_call(ncclComm_t comm, ncclResult_t result, std::string_view operation);
  bool end_all(bool abort);
  bool is_idle();
  bool drop_graphs(std::chrono::steady_clock::time_point deadline);
  std::shared_ptr<CommunicatorEndings> begin_endings(bool abort);

  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<NcclDevice> device_;
  NcclLinkConfig config_;
  std::shared_ptr<Slots> slots_;  ///< NCCL writes to them while it works
  std::byte* staging_ = nullptr;
  std::size_t staged_ = 0;
  std::shared_ptr<NcclMemory> memory_;
  std::vector<GraphOwner> owners_;
  bool stuck_ = false;
  std::optional<Error> failed_;
};

/// Returns true if an NCCL call did not return in time and its thread was abandoned. A normal end of the
/// program may then hang forever: the program should flush its output and call _exit.
bool nccl_is_stuck();

}  // namespace ddp::train
