#include "apps/train/collectives/cpu/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

namespace ddp::train {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHead = kPage;  ///< holds the lost rank
constexpr std::size_t kAreasPerRank = 4;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::size_t lines_size(int ranks) {
  const std::size_t size = static_cast<std::size_t>(ranks) * sizeof(ShmSegment::RankLine);
  return (size + kPage - 1) / kPage * kPage;
}

std::size_t segment_size(int ranks) {
  return kHead + lines_size(ranks) + static_cast<std::size_t>(ranks) * kAreasPerRank * ShmSegment::kAreaSize;
}

}  // namespace

Result<UniqueFd> ShmSegment::make(int ranks) {
  UniqueFd fd(::memfd_create("ddp-train", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_error(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(segment_size(ranks))) != 0)
    return system_error(errno, "ftruncate of the shared memory");
  // A rank that shrank it would kill all others with SIGBUS.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error(errno, "seals of the shared memory");
  return fd;
}

Result<ShmSegment> ShmSegment::map(int memory, int ranks) {
  const std::size_t size = segment_size(ranks);
  struct stat status {};
  if (::fstat(memory, &status) != 0) return system_error(errno, "fstat of the shared memory");
  if (status.st_size != static_cast<off_t>(size)) {
    return Error{ErrorCode::kProtocol, "the shared memory has " + std::to_string(status.st_size) +
                                           " bytes, not " + std::to_string(size) +
                                           "; check that all ranks run the same version of train"};
  }
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (base == MAP_FAILED) return system_error(errno, "mmap of the shared memory");
  return ShmSegment(static_cast<std::byte*>(base), size, ranks);
}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_(other.size_), ranks_(other.ranks_) {}

ShmSegment::~ShmSegment() {
  if (base_ != nullptr) ::munmap(base_, size_);
}

// A new memfd is all zeros, which these atomics begin with.

std::atomic<std::uint32_t>& ShmSegment::lost() const {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(base_);
}

ShmSegment::RankLine& ShmSegment::line(int rank) const {
  return reinterpret_cast<RankLine*>(base_ + kHead)[rank];
}

std::span<std::byte> ShmSegment::area(int rank, std::size_t number) const {
  const std::size_t index = static_cast<std::size_t>(rank) * kAreasPerRank + number;
  return {base_ + kHead + lines_size(ranks_) + index * kAreaSize, kAreaSize};
}

}  // namespace ddp::train
