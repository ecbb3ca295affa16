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
#include "apps/train/collectives/nccl/nccl_device.h"
#include "apps/train/collectives/nccl/nccl_library.h"
#include "apps/train/collectives/nccl/nccl_memory.h"
#include "base/result.h"

namespace ddp::train {

struct NcclLinkConfig {
  int rank = 0;  ///< in the job's world
  std::chrono::milliseconds start_timeout{120'000};
  std::chrono::milliseconds step_timeout{60'000};
  std::chrono::milliseconds end_timeout{5'000};  ///< for NCCL to abort or to free its memory
  int interrupt = -1;                            ///< ends every wait when it is readable; not owned
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
  Result<> checked(const Result<>& answer, std::string_view operation);

  /// Graphs that hold operations of the communicators, as in Communicator.
  void on_end(GraphOwner owner) { owners_.push_back(std::move(owner)); }

  /// Returns device memory of at least `bytes` bytes, for one operation. The next call may move it.
  Result<std::byte*> staging(std::size_t bytes);
  /// Returns memory that is zeroed and registered with the communicator, valid as long as the link. Empty:
  /// there is none (nccl_memory.h).
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
