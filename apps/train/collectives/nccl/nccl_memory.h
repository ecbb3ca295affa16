#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "apps/train/collectives/nccl/nccl_device.h"
#include "apps/train/collectives/nccl/nccl_library.h"

namespace ddp::train {

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

}  // namespace ddp::train
