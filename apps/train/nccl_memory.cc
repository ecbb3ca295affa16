#include "apps/train/nccl_memory.h"

#include <cstdio>

namespace ddp::train {

NcclMemory::~NcclMemory() {
  if (blocks_.empty()) return;
  // Other than cudaFree, ncclMemFree takes it away from what still runs.
  (void)device_->finish();
  for (void* block : blocks_)
    (void)(*library_)->release(block);
}

void NcclMemory::say(const char* function, ncclResult_t result, ncclComm_t comm) {
  if (std::exchange(said_, true)) return;
  std::fprintf(stderr, "train: sums go through NCCL's own buffers: %s said %s\n", function,
               library_->text_of(result, comm).c_str());
}

std::span<std::byte> NcclMemory::share(ncclComm_t comm, std::size_t bytes) {
  const NcclFunctions& nccl = *library_->operator->();
  if (nccl.allocate == nullptr || nccl.release == nullptr || nccl.register_memory == nullptr ||
      nccl.deregister_memory == nullptr)
    return {};
  void* block = nullptr;
  if (const auto result = nccl.allocate(&block, bytes); result != ncclSuccess) {
    say("ncclMemAlloc", result, comm);
    return {};
  }
  auto* const data = static_cast<std::byte*>(block);
  void* handle = nullptr;
  const auto result = nccl.register_memory(comm, block, bytes, &handle);
  if (result != ncclSuccess) say("ncclCommRegister", result, comm);
  if (result == ncclSuccess && handle != nullptr) registrations_.emplace_back(comm, handle);
  if (result == ncclSuccess && device_->zero(data, bytes)) {
    blocks_.push_back(block);
    return {data, bytes};
  }
  if (handle == nullptr) {
    (void)nccl.release(block);
  } else {
    blocks_.push_back(block);  // registered, so it goes with the others
  }
  return {};
}

std::vector<void*> NcclMemory::take_registrations(ncclComm_t comm) {
  std::vector<void*> handles;
  std::erase_if(registrations_, [&](const auto& one) {
    if (one.first == comm) handles.push_back(one.second);
    return one.first == comm;
  });
  return handles;
}

}  // namespace ddp::train
