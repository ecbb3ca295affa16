#include "apps/train/collectives/nccl/nccl_memory.h"

#include <cstdio>

namespace ddp::train {

NcclMemory::~NcclMemory() {
  for (void* block : blocks_)
    (void)(*library_)->release(block);
}

bool NcclMemory::is_possible() const {
  const NcclFunctions& nccl = *library_->operator->();
  return nccl.allocate != nullptr && nccl.release != nullptr && nccl.register_memory != nullptr &&
         nccl.deregister_memory != nullptr;
}

Result<std::span<std::byte>> NcclMemory::allocate(ncclComm_t comm, std::size_t bytes) {
  constexpr std::size_t kAlignment = 4096;  // NCCL_WIN_REQUIRED_ALIGNMENT
  const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* block = nullptr;
  if (const auto result = (*library_)->allocate(&block, size); result != ncclSuccess)
    return Error{ErrorCode::kSystem, "ncclMemAlloc: " + library_->text_of(result, comm)};
  blocks_.push_back(block);
  auto* const data = static_cast<std::byte*>(block);
  if (auto zeroed = device_->zero(data, size); !zeroed) return zeroed.error();
  return std::span(data, size);
}

bool NcclMemory::register_alone(ncclComm_t comm, std::span<std::byte> block) {
  void* handle = nullptr;
  const auto result = (*library_)->register_memory(comm, block.data(), block.size(), &handle);
  if (result == ncclSuccess) {
    registrations_.push_back({comm, handle, false, block.data()});
    return true;
  }
  if (!std::exchange(said_, true)) {
    std::fprintf(stderr, "train: sums are copied through NCCL's buffers: ncclCommRegister: %s\n",
                 library_->text_of(result, comm).c_str());
  }
  return false;
}

void NcclMemory::take_back(ncclComm_t comm) {
  if (registrations_.back().handle != nullptr)
    (void)(*library_)->deregister_memory(comm, registrations_.back().handle);
  registrations_.pop_back();
}

std::vector<NcclMemory::Registration> NcclMemory::take_registrations(ncclComm_t comm) {
  std::vector<Registration> taken;
  std::erase_if(registrations_, [&](const Registration& one) {
    if (one.comm == comm && one.handle != nullptr) taken.push_back(one);
    return one.comm == comm;
  });
  return taken;
}

void NcclMemory::leave_registrations(ncclComm_t comm) {
  for (const Registration& one : registrations_) {
    if (one.comm == comm && one.is_window) std::erase(blocks_, one.block);
  }
  (void)take_registrations(comm);
}

}  // namespace ddp::train
