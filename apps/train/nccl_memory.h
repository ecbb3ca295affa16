#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "apps/train/nccl_device.h"
#include "apps/train/nccl_library.h"

namespace ddp::train {

/// Memory that NCCL gave, registered with a communicator: what lies there it reads and writes without copies
/// through buffers of its own, where the machine can do that. One thread.
///
/// By ncclCommRegister, which asks nobody else and fails for this rank alone. A window
/// (ncclCommWindowRegister, 2.27) registers the same way, and adds what sums only use when it is a symmetric
/// one; it is made by all ranks together, so that one that cannot lets the others wait, and a communicator
/// that does not block is lost with it.
class NcclMemory {
 public:
  NcclMemory(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<NcclDevice> device)
      : library_(std::move(library)), device_(std::move(device)) {}
  /// Gives all back, and waits for the device before; the communicators have ended.
  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  /// Zeroed. Empty where there is none that can be registered, which is said on stderr, once.
  std::span<std::byte> share(ncclComm_t comm, std::size_t bytes);
  /// What must be deregistered before the communicator is destroyed; an abort does that by itself.
  std::vector<void*> take_registrations(ncclComm_t comm);

 private:
  void say(const char* function, ncclResult_t result, ncclComm_t comm);

  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<NcclDevice> device_;
  std::vector<void*> blocks_;
  std::vector<std::pair<ncclComm_t, void*>> registrations_;
  bool said_ = false;
};

}  // namespace ddp::train
