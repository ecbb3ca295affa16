#include "apps/train/collectives/cpu/shm_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace ddp::train {

Result<UniqueFd> ShmBuffer::make() {
  UniqueFd fd(::memfd_create("ddp-train-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_error(errno, "memfd_create");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    return system_error(errno, "seals of the shared memory");
  return fd;
}

Result<ShmBuffer> ShmBuffer::map(int memory, std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory, 0);
  if (base == MAP_FAILED) return system_error(errno, "mmap of the shared memory");
  return ShmBuffer(static_cast<std::byte*>(base), bytes);
}

ShmBuffer::ShmBuffer(ShmBuffer&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_(other.size_) {}

ShmBuffer::~ShmBuffer() {
  if (base_ != nullptr) ::munmap(base_, size_);
}

}  // namespace ddp::train
