#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "apps/train/collectives/nccl/nccl_device.h"
#include "apps/train/collectives/nccl/nccl_library.h"

namespace ddp::train {

/// Memory that NCCL gave, registered with a communicator: what lies there it reads and writes without copies
/// through buffers of its own, where the machine can do that. One thread. Who makes the registrations of all
/// ranks together (windows) is NcclLink.
class NcclMemory {
 public:
  NcclMemory(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<NcclDevice> device)
      : library_(std::move(library)), device_(std::move(device)) {}
  /// Gives all back, and waits for the device before; the communicators have ended.
  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  /// Whether the library can give and register memory.
  bool is_possible() const;
  /// Zeroed, a multiple of a window's alignment; kSystem with what NCCL said.
  Result<std::span<std::byte>> allocate(ncclComm_t comm, std::size_t bytes);
  /// ncclCommRegister, which asks no other rank. False: it cannot, which is said on stderr, once.
  bool register_alone(ncclComm_t comm, std::span<std::byte> block);
  /// Undoes the last register_alone() that could.
  void take_back(ncclComm_t comm);
  /// Of a window that all ranks have made.
  void keep_window(ncclComm_t comm, void* window) { registrations_.push_back({comm, window, true}); }

  struct Registration {
    ncclComm_t comm;
    void* handle;
    bool is_window;
  };
  /// What must be deregistered before the communicator is destroyed; an abort does that by itself.
  std::vector<Registration> take_registrations(ncclComm_t comm);

 private:
  std::shared_ptr<const NcclLibrary> library_;
  std::shared_ptr<NcclDevice> device_;
  std::vector<void*> blocks_;
  std::vector<Registration> registrations_;
  bool said_ = false;
};

}  // namespace ddp::train
