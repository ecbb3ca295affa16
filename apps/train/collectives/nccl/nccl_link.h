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

#include "apps/train/collectives/nccl/nccl_device.h"
#include "apps/train/collectives/nccl/nccl_library.h"
#include "apps/train/collectives/nccl/nccl_memory.h"
#include "apps/train/collectives/peer_directory.h"
#include "base/result.h"

namespace ddp::train {

struct NcclLinkConfig {
  int rank = 0;  ///< in the job's world
  std::chrono::milliseconds start_timeout{120'000};
  std::chrono::milliseconds step_timeout{60'000};
  std::chrono::milliseconds end_timeout{5'000};  ///< for NCCL to abort or to give its memory back
  int interrupt = -1;                            ///< ends every wait when it is readable; not owned
};

/// NCCL's communicators of one rank, and every wait for them. They are of the kind that does not block, so
/// that a peer that is gone, a deadline or a revoke ends any wait. As one failure ends them all, they are
/// aborted together, each on a thread of its own: NCCL's abort may hang, and one of several may wait for
/// another. What does not end in `end_timeout` is left alone with its thread and its memory, and
/// nccl_is_stuck() says so from then on.
///
/// One thread. Errors as of Communicator; kUsage, kSystem and kInternal where NCCL says so.
class NcclLink {
 public:
  /// So many ranks share one place to meet, where the library can do with several.
  static constexpr int kRanksPerRoot = 128;

  NcclLink(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<NcclDevice> device,
           NcclLinkConfig config);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  /// A communicator of `size` ranks that all call this, over ids that are made for it and told through the
  /// directory under the group's name. An id serves once: the directory must be that of this attempt.
  Result<ncclComm_t> open(PeerDirectory& directory, const std::string& group, int rank, int size);
  /// Parts of another one: ranks of one colour, in the order of their keys. All its ranks call this; those
  /// with a colour below 0 get null. kUsage where the library has no ncclCommSplit.
  Result<ncclComm_t> split(ncclComm_t whole, int color, int key);

  using NcclCall = std::function<ncclResult_t(const NcclFunctions&)>;
  /// Has NCCL put an operation into a stream, and waits until it is in there.
  Result<> call(ncclComm_t comm, std::string_view operation, const NcclCall& call);
  /// Until done() says so; its error is the device's.
  Result<> wait(ncclComm_t comm, std::string_view operation, const std::function<Result<bool>()>& done);
  /// What the device answered. A failure ends the link like any other.
  Result<> checked(const Result<>& answer, std::string_view operation);

  /// Called once, before the communicators are ended in any way.
  void on_end(std::function<void()> callback) { on_end_.push_back(std::move(callback)); }

  /// Device memory of at least so many bytes, for one operation; the next call may move it.
  Result<std::byte*> staging(std::size_t bytes);
  /// As long as this lives, zeroed and registered with the communicator; empty: there is none
  /// (nccl_memory.h).
  std::span<std::byte> share_memory(ncclComm_t comm, std::size_t bytes);
  /// The same, or what the device has.
  Result<std::span<std::byte>> memory(ncclComm_t comm, std::size_t bytes);
  NcclDevice& device() { return *device_; }

 private:
  struct Slots;

  bool all_agree(ncclComm_t comm, bool mine);

  Result<std::vector<ncclUniqueId>> meet(PeerDirectory& directory, const std::string& group, int rank,
                                         int size);
  Result<> settle(ncclComm_t comm, ncclResult_t result, std::string_view operation,
                  std::chrono::milliseconds timeout);
  Error fail(ErrorCode code, const std::string& reason, std::string_view operation);
  Error failed_call(ncclComm_t comm, ncclResult_t result, std::string_view operation);
  bool end_all(bool abort);

  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<NcclDevice> device_;
  NcclLinkConfig config_;
  std::shared_ptr<Slots> slots_;  ///< NCCL writes to them while it works
  std::byte* staging_ = nullptr;
  std::size_t staged_ = 0;
  std::vector<std::byte*> own_;  ///< of the device
  std::shared_ptr<NcclMemory> memory_;
  std::vector<std::function<void()>> on_end_;
  bool stuck_ = false;
  std::optional<Error> failed_;
};

/// Whether a call of NCCL's did not come back in time and its thread was left alone. A program that then
/// ends as usual may hang for ever: it should flush its output and call _exit.
bool nccl_is_stuck();

}  // namespace ddp::train
